"""Resolve a deployment: model, deploy files, platform, flags and overrides become one immutable record for each stage.

The layers, from the lowest (PR-01): the base file, the files above it, the platform's section (and what plugins say about the
platform), the flags that the user typed, the overrides of single stages. What a pipeline fixes beats all of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_core.deploy.connectors import resolve_edges
from omni_core.deploy.denoising import check_denoising
from omni_core.deploy.devices import check_devices
from omni_core.deploy.duplex import DuplexPlan, read_settings, resolve_duplex
from omni_core.deploy.files import Bundle, Deployment, read_bundled, read_deployment
from omni_core.deploy.keys import DEPLOY_ONLY
from omni_core.deploy.layers import CommandLine, Plan, lay, read_command_line
from omni_core.deploy.modes import Streaming, resolve_model_runner, resolve_session_mode, resolve_streaming
from omni_core.deploy.mps import MpsPlan, plan_mps
from omni_core.deploy.notes import collect_warnings, warn
from omni_core.deploy.provenance import Choice, Provenance
from omni_core.deploy.stage_checks import check_stage
from omni_core.deploy.stages import resolve_values
from omni_core.deploy.targets import check_targets
from omni_core.deploy.tree import Node
from omni_core.deploy.voices import check_voice_folder
from omni_core.errors import ConfigError, DependencyError
from omni_core.model_info import ModelInfo, read_model_info
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.platforms import Platform, current_platform
from omni_core.plugins import PluginManager, plugin_manager
from omni_core.registry import architectures, resolve_pipeline
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage


def resolve_deployment(
    model: str | Path | ModelInfo,
    *,
    deploy_config: str | Path | Sequence[str | Path] | None = None,
    flags: Mapping[str, Any] | None = None,
    stage_overrides: Mapping[Any, Any] | str | None = None,
    manager: PluginManager | None = None,
    platform: str | Platform | None = None,
    frontend_count: int = 1,
    flag_stages: Collection[int] | None = None,
) -> ResolvedPipeline:
    """Return everything that is needed to start a model's stages; no process is started and no weight is read.

    Args:
        model: Checkpoint folder or repository name; a repository's weights are fetched last, once everything is in order.
            A ModelInfo is taken as it is.
        deploy_config: Deploy files by path or bundled name, later ones on top; by default the pipeline's own.
        flags: Flags that the user gave, by field name; None means not given. `stage_N_FIELD` is an override of stage N, `set` a
            list of `PATH=VALUE`, `default_sampling_params` sampling parameters by stage id.
        stage_overrides: Fields by stage id, as JSON or a mapping; they beat flags.
        manager: The plugins; by default those of this process.
        platform: The platform or its name; by default the detected one.
        frontend_count: How many processes accept full-duplex sessions (`--api-server-count`).
        flag_stages: Stages that flags are for, where a command starts some of them only (`--stage-id`); None is all.

    Raises:
        ConfigError: Anything that the user wrote cannot be used.
        DependencyError: A package that is needed is not there.
    """
    with collect_warnings() as warnings:
        line = read_command_line(flags, stage_overrides, flag_stages)
        resolved = _resolve(model, _names(deploy_config), line, manager or plugin_manager(), platform, frontend_count)
    return replace(resolved, warnings=tuple(warnings))


def _resolve(
    model: str | Path | ModelInfo,
    names: list[str],
    line: CommandLine,
    manager: PluginManager,
    platform: str | Platform | None,
    frontend_count: int,
) -> ResolvedPipeline:
    info = model if isinstance(model, ModelInfo) else read_model_info(model, revision=line.revision, weights=False)
    running = platform if isinstance(platform, Platform) else current_platform(manager, platform)
    pipeline, deployment = _choose(info, names, line, manager)
    plan = lay(pipeline, deployment, running, line, manager)
    resolved = _Resolver(info, plan, running, manager).resolve(deployment.files, frontend_count)
    manager.collect("omni_config_resolved", passing=(ConfigError, DependencyError), stages=resolved.stages)
    if not isinstance(model, ModelInfo) and not Path(model).expanduser().is_dir():
        read_model_info(model, revision=line.revision)
    return resolved


def _names(deploy_config: str | Path | Sequence[str | Path] | None) -> list[str]:
    if deploy_config is None:
        return []
    return list(map(str, [deploy_config] if isinstance(deploy_config, (str, Path)) else deploy_config))


def _choose(model: ModelInfo, names: list[str], line: CommandLine, manager: PluginManager) -> tuple[PipelineConfig, Deployment]:
    """Choose the pipeline and read the deploy files: the named ones, or else the pipeline's default (RG-04, RG-13)."""
    bundle = Bundle(manager)
    deployment = read_deployment(names, bundle)
    node = line.assigned.top.get("pipeline") or deployment.tree.get("pipeline")
    key, where = (None, "") if node is None else (str(node.value), node.place)
    pipeline = resolve_pipeline(model, manager, key=key, where=where).record
    if not names and pipeline.default_deploy_config_name is not None:
        deployment = read_bundled(pipeline.default_deploy_config_name, bundle, pipeline=pipeline.model_type)
    return pipeline, deployment


class _Resolver:
    """Turn a plan into records."""

    def __init__(self, model: ModelInfo, plan: Plan, platform: Platform, manager: PluginManager) -> None:
        self._model = model
        self._plan = plan
        self._platform = platform
        self._manager = manager
        self._classes = architectures(manager)

    def resolve(self, files: tuple[str, ...], frontend_count: int) -> ResolvedPipeline:
        """Return the resolved pipeline."""
        plan, pipeline = self._plan, self._plan.pipeline
        session_mode = resolve_session_mode(pipeline, plan.deploy)
        streaming = resolve_streaming(pipeline, plan.deploy, plan.stages)
        edges, edge_provenance = resolve_edges(pipeline, plan.deploy, plan.stages, streaming.producers(pipeline), self._manager)
        check_targets(pipeline)
        stages = tuple(self._stage(stage, streaming, edges, session_mode) for stage in pipeline.stages)
        duplex = self._duplex(session_mode.value, stages, frontend_count)
        if duplex is not None:
            stages = tuple(replace(stage, duplex_max_sessions=duplex.settings.duplex_max_sessions) for stage in stages)
        values, provenance = self._deploy_values()
        provenance.choose("async_chunk", streaming.pipeline)
        provenance.choose("session_mode", session_mode)
        provenance.update(edge_provenance)
        return ResolvedPipeline(
            config=pipeline,
            model=str(self._model.path),
            stages=stages,
            async_chunk=streaming.enabled,
            platform=self._platform.name,
            files=files,
            values={"session_mode": session_mode.value, **values},
            sources=provenance.sources,
            losers=provenance.losers,
            duplex=duplex,
            mps=self._mps(values, provenance, stages),
        )

    def _duplex(self, mode: str, stages: tuple[ResolvedStage, ...], frontend_count: int) -> DuplexPlan | None:
        pipeline, node = self._plan.pipeline, self._plan.deploy.get("duplex_session")
        if mode != "duplex":
            read_settings(node)
            if node is not None:
                warn(f"{node.place}: duplex_session has no effect, the session mode is {mode}")
            return None
        replicas = {stage.stage_id: stage.num_replicas for stage in stages}
        return resolve_duplex(node, pipeline, replicas, pipeline.duplex_capabilities, frontend_count=frontend_count)

    def _mps(self, values: Mapping[str, Any], provenance: Provenance, stages: tuple[ResolvedStage, ...]) -> MpsPlan | None:
        if not values.get("cuda_mps"):
            return None
        if self._platform.name != "cuda":
            warn(f"{provenance.sources['cuda_mps'].place}: cuda_mps has no effect on {self._platform.name}")
            return None
        return plan_mps(stages, wanted=True, environ=os.environ)

    def _stage(
        self, topology: StagePipelineConfig, streaming: Streaming, edges: tuple[ResolvedEdge, ...], session_mode: Choice
    ) -> ResolvedStage:
        plan, stage_id = self._plan, topology.stage_id
        fields = plan.stages[stage_id]
        values = resolve_values(topology, fields)
        check_denoising(topology, values.engine_args, values.provenance.sources)
        check_devices(topology, values.devices, values.num_replicas, values.engine_args, values.provenance.sources)
        for text in check_stage(topology, values, platform=self._platform.name):
            warn(text)
        runner = resolve_model_runner(plan.pipeline, topology, plan.deploy, fields, session_mode.value)
        values.provenance.choose("model_runner", runner)
        values.provenance.choose("async_chunk", streaming.stages[stage_id])
        architecture = plan.pipeline.architecture(stage_id) or next(iter(self._model.architectures), "")
        stage = ResolvedStage(
            pipeline=plan.pipeline.model_type,
            topology=topology,
            model=self._checkpoint(topology, values.engine_args),
            architecture=architecture,
            architecture_target=self._classes.get(architecture),
            runner="",
            platform=self._platform.name,
            model_runner="v2" if runner.value == "v2" else "v1",
            async_chunk=bool(streaming.stages[stage_id].value),
            devices=values.devices,
            num_replicas=values.num_replicas,
            restart=values.restart,
            env=values.env,
            engine_args=values.engine_args,
            sampling=values.sampling,
            inputs=tuple(edge for edge in edges if edge.to_stage == stage_id),
            outputs=tuple(edge for edge in edges if edge.from_stage == stage_id),
            sources=values.provenance.sources,
            losers=values.provenance.losers,
        )
        return self._choose_runner(stage)

    def _checkpoint(self, topology: StagePipelineConfig, engine_args: dict[str, Any]) -> str:
        """Return the folder of a stage's checkpoint, which a stage's own `model` argument replaces."""
        own = engine_args.pop("model", None)
        return str(self._model.path) if own is None else str(read_model_info(own).path)

    def _choose_runner(self, stage: ResolvedStage) -> ResolvedStage:
        chosen = self._manager.first("omni_stage_runner", stage=stage, platform=self._platform)
        if chosen is None:
            raise ConfigError(
                f"nothing runs stage {stage.name} of type {stage.topology.execution_type} on {self._platform.name}",
                hint="install a plugin that offers a runner for it (omni plugins --hook omni_stage_runner)",
            )
        entry = chosen[1]
        return replace(stage, runner=entry.target, preload=tuple(entry.preload), requires=tuple(entry.requires))

    def _deploy_values(self) -> tuple[dict[str, Any], Provenance]:
        """Return the top-level fields that no stage's engine takes, and the stage fields that the server reads."""
        values: dict[str, Any] = {}
        provenance = Provenance()
        for name in sorted((DEPLOY_ONLY | {"duplex_session", "edges"}) - {"async_chunk"}):
            node = self._plan.deploy.value.get(name)
            if node is not None and node.value is not None:
                values[name] = node.plain()
            if node is not None and (node.value is not None or node.lost):
                provenance.record(name, node)
        node = self._instructions_limit()
        if node is not None:
            values["tts_max_instructions_length"] = node.value
            provenance.record("tts_max_instructions_length", node)
        folder = values.get("custom_voice_dir")
        if folder is not None:
            found = str(check_voice_folder(folder, where=provenance.sources["custom_voice_dir"].place))
            values["custom_voice_dir"] = found
            provenance.sources["custom_voice_dir"] = replace(provenance.sources["custom_voice_dir"], value=found)
        return values, provenance

    def _instructions_limit(self) -> Node | None:
        """Return `tts_max_instructions_length`, which the server reads once although a stage has it."""
        found = [
            node for fields in self._plan.stages.values() if (node := fields.get("tts_max_instructions_length")) is not None
        ]
        if len({node.value for node in found}) > 1:
            places = " and ".join(f"{node.value} ({node.place})" for node in found)
            raise ConfigError(
                f"tts_max_instructions_length is {places}", where=found[-1].place, hint="set it for one stage", param="stages"
            )
        return found[0] if found else None
