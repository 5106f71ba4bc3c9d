"""One command of a pipeline whose stages are started one by one (`--stage-id`): its deployment, and what all commands share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_core.deploy.agreement import agreement
from omni_core.deploy.devices import parse_devices, world_size
from omni_core.deploy.overrides import parse_stage_overrides
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import ModelInfo
from omni_core.platforms import Platform, current_platform
from omni_core.plugins import PluginManager, plugin_manager
from omni_core.stage import ResolvedPipeline, ResolvedStage


@dataclass(frozen=True)
class StageCommand:
    """What one command starts."""

    pipeline: ResolvedPipeline
    """The whole pipeline, with this command's settings for its own stage."""
    stage_id: int | None
    """Its own stage; None for a head that runs none."""
    facts: Mapping[str, str]
    """What all commands must agree on."""
    platform: Platform

    @property
    def own_stages(self) -> frozenset[int]:
        """Its own stage as a set."""
        return frozenset() if self.stage_id is None else frozenset({self.stage_id})


def resolve_stage_command(
    model: str | Path | ModelInfo,
    stage_id: int | None,
    *,
    replicas: int | None = None,
    deploy_config: str | Path | Sequence[str | Path] | None = None,
    flags: Mapping[str, Any] | None = None,
    stage_overrides: Mapping[Any, Any] | str | None = None,
    manager: PluginManager | None = None,
    platform: Platform | None = None,
    environ: Mapping[str, str] = os.environ,
) -> StageCommand:
    """Return what a command with `--stage-id` starts; flags are for its own stage (SB-05).

    Args:
        model: Checkpoint folder or repository name, or what was read of one.
        stage_id: The command's own stage; None for a head that runs none (SB-02).
        replicas: How many replicas of its stage this command starts (`--omni-dp-size-local`, SB-06); None is what the
            deployment says.
        deploy_config: Deploy files, and further arguments, as for `resolve_deployment`.
        flags: Flags that the user gave.
        stage_overrides: Fields by stage id.
        manager: The plugins.
        platform: The platform; by default the detected one.
        environ: The launcher's environment.

    Raises:
        ConfigError: There is no such stage (SB-03), or anything else that the user wrote cannot be used.
        DependencyError: A package that is needed is not there.
    """
    manager = manager or plugin_manager()
    platform = platform or current_platform(manager)
    own = () if stage_id is None else (stage_id,)
    overrides = parse_stage_overrides(stage_overrides)
    if stage_id is not None and replicas is not None:
        overrides[stage_id] = {**overrides.get(stage_id, {}), "num_replicas": replicas}
    resolved = resolve_deployment(
        model,
        deploy_config=deploy_config,
        flags=flags,
        stage_overrides=overrides,
        manager=manager,
        platform=platform,
        flag_stages=own,
    )
    stages = tuple(
        _with_visible_devices(stage, platform, environ) if stage.stage_id in own else stage for stage in resolved.stages
    )
    named = [] if deploy_config is None else [deploy_config] if isinstance(deploy_config, (str, Path)) else list(deploy_config)
    facts = agreement(resolved, [str(name) for name in named], manager)
    return StageCommand(replace(resolved, stages=stages), stage_id, facts, platform)


def _with_visible_devices(stage: ResolvedStage, platform: Platform, environ: Mapping[str, str]) -> ResolvedStage:
    """Return a stage whose devices are those that its command sees, if they are as many as it needs (SB-11).

    A deploy file numbers the devices of one host with all stages on it. A command for one stage is shown its own devices alone,
    `CUDA_VISIBLE_DEVICES=1 omni serve ... --stage-id 1`, and there they count from 0.
    """
    variable = platform.visible_devices_env
    if variable is None or variable not in environ or stage.devices is None:
        return stage
    source = stage.sources.get("devices")
    seen = len(parse_devices(environ[variable]))
    if (source is not None and source.layer == "stage override") or seen != stage.num_replicas * world_size(stage.engine_args):
        return stage
    return replace(stage, devices=",".join(map(str, range(seen))))
