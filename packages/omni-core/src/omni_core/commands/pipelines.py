"""`omni pipelines`: what can be served."""

from __future__ import annotations

import argparse
from typing import Any

from omni_core.commands.output import write, write_json, write_table
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import current_platform
from omni_core.plugins import Offer, PluginManager, plugin_manager
from omni_core.registry import architectures, pipelines
from omni_core.stage import ResolvedStage


class PipelinesCommand:
    """List the pipelines that plugins offer."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="Write JSON.")

    def run(self, args: argparse.Namespace) -> int:
        """Write the list."""
        manager = plugin_manager()
        offers = [offer for _, offer in sorted(pipelines(manager).items())]
        if args.json:
            write_json([_facts(offer, manager) for offer in offers])
        elif offers:
            write_table([_row(offer, manager) for offer in offers])
        else:
            write("no pipeline is installed; pip install a model package")
        return 0


def _row(offer: Offer[PipelineConfig], manager: PluginManager) -> list[str]:
    pipeline = offer.record
    stages = " -> ".join(stage.model_stage for stage in pipeline.stages)
    missing = _missing(pipeline, manager)
    note = f"cannot be started: nobody offers {', '.join(missing)}" if missing else ""
    return [pipeline.model_type, offer.distribution, stages, pipeline.default_deploy_config_name or "no deploy file", note]


def _missing(pipeline: PipelineConfig, manager: PluginManager) -> list[str]:
    """Return the architectures that no runner takes, asked as at a start but without a checkpoint."""
    targets = architectures(manager)
    platform = current_platform(manager)
    missing = []
    for topology in pipeline.stages:
        name = pipeline.architecture(topology.stage_id)
        stage = ResolvedStage(
            pipeline=pipeline.model_type,
            topology=topology,
            model="",
            architecture=name,
            architecture_target=targets.get(name),
            runner="",
            platform=platform.name,
        )
        chosen = manager.first("omni_stage_runner", stage=stage, platform=platform)
        if chosen is None or not chosen[1].target:
            missing.append(name)
    return missing


def _facts(offer: Offer[PipelineConfig], manager: PluginManager) -> dict[str, Any]:
    pipeline = offer.record
    return {
        "pipeline": pipeline.model_type,
        "distribution": offer.distribution,
        "architectures": list(pipeline.hf_architectures),
        "deploy_config": pipeline.default_deploy_config_name,
        "missing_architectures": _missing(pipeline, manager),
        "stages": [
            {
                "stage_id": stage.stage_id,
                "name": stage.model_stage,
                "type": str(stage.execution_type),
                "input_sources": list(stage.input_sources),
                "output": stage.final_output_type if stage.final_output else None,
            }
            for stage in pipeline.stages
        ],
    }


command = PipelinesCommand()
