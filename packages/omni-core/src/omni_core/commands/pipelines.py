"""`omni pipelines`: what can be served."""

from __future__ import annotations

import argparse
from typing import Any

from omni_core.commands.output import write, write_json, write_table
from omni_core.pipeline import PipelineConfig
from omni_core.plugins import Offer, plugin_manager
from omni_core.registry import pipelines


class PipelinesCommand:
    """List the pipelines that plugins offer."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="Write JSON.")

    def run(self, args: argparse.Namespace) -> int:
        """Write the list."""
        offers = [offer for _, offer in sorted(pipelines(plugin_manager()).items())]
        if args.json:
            write_json([_facts(offer) for offer in offers])
        elif offers:
            write_table([_row(offer) for offer in offers])
        else:
            write("no pipeline is installed; pip install a model package")
        return 0


def _row(offer: Offer[PipelineConfig]) -> list[str]:
    pipeline = offer.record
    stages = " -> ".join(stage.model_stage for stage in pipeline.stages)
    return [pipeline.model_type, offer.distribution, stages, pipeline.default_deploy_config_name or "no deploy file"]


def _facts(offer: Offer[PipelineConfig]) -> dict[str, Any]:
    pipeline = offer.record
    return {
        "pipeline": pipeline.model_type,
        "distribution": offer.distribution,
        "architectures": list(pipeline.hf_architectures),
        "deploy_config": pipeline.default_deploy_config_name,
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
