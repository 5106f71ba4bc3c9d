"""How a pipeline's stages work together: chunked streaming, session mode and vLLM's model runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omni_core.deploy.duplex import check_session_mode
from omni_core.deploy.notes import warn
from omni_core.deploy.provenance import Choice, choose, losers_of, source_of
from omni_core.deploy.tree import Node
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.stage import Source


@dataclass(frozen=True)
class Streaming:
    """What `async_chunk` comes to (DY-06)."""

    pipeline: Choice
    """Whether chunks are handed on at all."""
    stages: Mapping[int, Choice]
    """For each stage, whether it takes part."""

    @property
    def enabled(self) -> bool:
        """Whether chunks are handed on at all."""
        return bool(self.pipeline.value)

    def producers(self, pipeline: PipelineConfig) -> frozenset[int]:
        """Return the stages that hand on chunks while they work."""
        return frozenset(stage.stage_id for stage in pipeline.stages if self.stages[stage.stage_id].value and _hands_on(stage))


def _hands_on(stage: StagePipelineConfig) -> bool:
    return stage.async_chunk_process_next_stage_input_func is not None


def resolve_streaming(pipeline: PipelineConfig, deploy: Node, stages: Mapping[int, Node]) -> Streaming:
    """Decide where chunks are handed on while a stage works.

    Raises:
        ConfigError: It is asked for and no stage can, the two ends of an edge disagree, or a stage transfers its KV cache.
    """
    whole = _pipeline_wide(pipeline, deploy)
    taking_part = {
        stage.stage_id: _taking_part(stage, whole, stages[stage.stage_id].get("async_chunk")) for stage in pipeline.stages
    }
    for producer, consumer in pipeline.edges:
        if _hands_on(pipeline.stage(producer)) and taking_part[producer].value != taking_part[consumer].value:
            odd = producer if not taking_part[producer].value else consumer
            own = stages[odd].get("async_chunk")
            raise ConfigError(
                f"pipeline {pipeline.model_type!r}: async_chunk differs between the ends of the edge "
                f"from stage {producer} to stage {consumer}",
                where=own.place if own is not None else "",
                hint="set it alike for both stages",
                param="async_chunk",
            )
    for stage in pipeline.stages:
        transfer = stages[stage.stage_id].get("kv_transfer_config")
        if transfer is not None and whole.value:
            raise ConfigError(
                f"pipeline {pipeline.model_type!r}: the kv_transfer_config of stage {stage.stage_id} takes whole payloads",
                where=transfer.place,
                hint="set async_chunk: false",
                param="async_chunk",
            )
    return Streaming(whole, taking_part)


def _taking_part(stage: StagePipelineConfig, whole: Choice, own: Node | None) -> Choice:
    """Return whether a stage takes part: it can leave on its own, but not take part alone."""
    if own is None:
        return whole
    if own.value and not whole.value:
        warn(f"{own.place}: async_chunk of stage {stage.stage_id} has no effect, it is off for the pipeline")
        return Choice(whole.value, whole.source, (source_of(own), *losers_of(own), *whole.losers))
    return Choice(own.value, source_of(own), (*losers_of(own), whole.source, *whole.losers))


def _pipeline_wide(pipeline: PipelineConfig, deploy: Node) -> Choice:
    wanted = choose([deploy.value.get("async_chunk")], Source("default", value=True))
    if not wanted.value:
        return wanted
    off = Choice(False, Source("pipeline", f"pipeline {pipeline.model_type}", False), (wanted.source, *wanted.losers))
    if len(pipeline.stages) == 1:
        return wanted if pipeline.single_stage_streams else off
    if any(_hands_on(pipeline.stage(producer)) for producer, _ in pipeline.edges):
        return wanted
    if deploy.get("async_chunk") is None or not pipeline.edges:
        return off
    raise ConfigError(
        f"pipeline {pipeline.model_type!r}: async_chunk is on, but no stage can hand on chunks",
        where=wanted.source.place,
        hint="set async_chunk: false, or give a stage async_chunk_process_next_stage_input_func",
        param="async_chunk",
    )


def resolve_session_mode(pipeline: PipelineConfig, deploy: Node) -> Choice:
    """Return `turn` or `duplex` (DY-07).

    Raises:
        ConfigError: Duplex is asked for and the pipeline has no duplex plugin, or it has one and nobody chose.
    """
    default = Source("default", value="turn")
    if pipeline.duplex_plugin is not None:
        default = Source("pipeline", f"pipeline {pipeline.model_type}", pipeline.default_session_mode)
    node = deploy.get("session_mode")
    check_session_mode(node and node.value, pipeline, node.place if node is not None else "")
    return choose([deploy.value.get("session_mode")], default)


def resolve_model_runner(
    pipeline: PipelineConfig, stage: StagePipelineConfig, deploy: Node, fields: Node, session_mode: str
) -> Choice:
    """Return the model runner of a stage: its own value, else the platform's, else the deploy file's, else v1 (MR-01, MR-02).

    v2 for a stage without the native data plane is a warning (MR-04).

    Raises:
        ConfigError: Duplex sessions on a stage that receives natively, in a pipeline that does not support it (MR-05).
    """
    nodes = [fields.value.get("model_runner"), deploy.value.get("model_runner")]
    chosen = choose(nodes, Source("default", value="v1"))
    if chosen.value == "v1":
        return chosen
    if not stage.supports_native_mrv2_data_plane:
        warn(
            f"stage {stage.stage_id} ({stage.model_stage}, {pipeline.architecture(stage.stage_id)}) runs on model runner v2 "
            "without its native data plane: payloads take the usual path"
        )
    elif session_mode == "duplex" and stage.input_sources and not pipeline.supports_duplex_mrv2:
        raise ConfigError(
            f"pipeline {pipeline.model_type!r} has no duplex sessions on model runner v2, which stage {stage.stage_id} uses",
            where=chosen.source.place,
            hint=f"set model_runner: v1 for stage {stage.stage_id}, or session_mode: turn",
            param="model_runner",
        )
    return chosen
