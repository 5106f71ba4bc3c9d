"""How a pipeline's stages work together: chunked streaming, session mode and vLLM's model runner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from omni_core.deploy.tree import Node
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.stage import Source

logger = logging.getLogger(__name__)

_DEFAULT = Source("default")
_PIPELINE = Source("pipeline")


@dataclass(frozen=True)
class Streaming:
    """What `async_chunk` comes to (DY-06)."""

    enabled: bool
    source: Source
    stages: Mapping[int, bool]
    """For each stage, whether it takes part."""

    def producers(self, pipeline: PipelineConfig) -> frozenset[int]:
        """Return the stages that hand on chunks while they work."""
        return frozenset(stage.stage_id for stage in pipeline.stages if self.stages[stage.stage_id] and _hands_on(stage))


def _hands_on(stage: StagePipelineConfig) -> bool:
    return stage.async_chunk_process_next_stage_input_func is not None


def resolve_streaming(pipeline: PipelineConfig, deploy: Node, stages: Mapping[int, Node]) -> Streaming:
    """Decide where chunks are handed on while a stage works.

    Raises:
        ConfigError: It is asked for and no stage can, the two ends of an edge disagree, or a stage transfers its KV cache.
    """
    enabled, source = _pipeline_wide(pipeline, deploy)
    taking_part: dict[int, bool] = {}
    for stage in pipeline.stages:
        own = stages[stage.stage_id].get("async_chunk")
        if own is not None and own.value and not enabled:
            logger.warning("%s: async_chunk of stage %d has no effect, it is off for the pipeline", own.place, stage.stage_id)
        taking_part[stage.stage_id] = enabled and (own is None or own.value)
    for producer, consumer in pipeline.edges:
        if _hands_on(pipeline.stage(producer)) and taking_part[producer] != taking_part[consumer]:
            odd = producer if not taking_part[producer] else consumer
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
        if transfer is not None and enabled:
            raise ConfigError(
                f"pipeline {pipeline.model_type!r}: the kv_transfer_config of stage {stage.stage_id} takes whole payloads",
                where=transfer.place,
                hint="set async_chunk: false",
                param="async_chunk",
            )
    return Streaming(enabled, source, taking_part)


def _pipeline_wide(pipeline: PipelineConfig, deploy: Node) -> tuple[bool, Source]:
    node = deploy.get("async_chunk")
    wanted, source = (True, _DEFAULT) if node is None else (bool(node.value), node.source)
    if not wanted:
        return False, source
    if len(pipeline.stages) == 1:
        return (True, source) if pipeline.single_stage_streams else (False, _PIPELINE)
    if any(_hands_on(pipeline.stage(producer)) for producer, _ in pipeline.edges):
        return True, source
    if node is None or not pipeline.edges:
        return False, _PIPELINE
    raise ConfigError(
        f"pipeline {pipeline.model_type!r}: async_chunk is on, but no stage can hand on chunks",
        where=source.place,
        hint="set async_chunk: false, or give a stage async_chunk_process_next_stage_input_func",
        param="async_chunk",
    )


def resolve_session_mode(pipeline: PipelineConfig, deploy: Node) -> tuple[str, Source]:
    """Return `turn` or `duplex` (DY-07).

    Raises:
        ConfigError: Duplex is asked for and the pipeline has no duplex plugin, or it has one and nobody chose.
    """
    node = deploy.get("session_mode")
    if node is not None:
        if node.value == "duplex" and pipeline.duplex_plugin is None:
            raise ConfigError(
                f"pipeline {pipeline.model_type!r} has no duplex sessions",
                where=node.place,
                hint="set session_mode: turn",
                param="session_mode",
            )
        return str(node.value), node.source
    if pipeline.duplex_plugin is None:
        return "turn", _DEFAULT
    if pipeline.default_session_mode in {"turn", "duplex"}:
        return str(pipeline.default_session_mode), _PIPELINE
    raise ConfigError(
        f"pipeline {pipeline.model_type!r} needs session_mode turn or duplex",
        hint="set session_mode in a deploy file",
        param="session_mode",
    )


def resolve_model_runner(
    pipeline: PipelineConfig, stage: StagePipelineConfig, deploy: Node, fields: Node, session_mode: str
) -> tuple[str, Source]:
    """Return the model runner of a stage: its own value, else the platform's, else the deploy file's, else v1 (MR-01, MR-02).

    v2 for a stage without the native data plane is a warning (MR-04).

    Raises:
        ConfigError: Duplex sessions on a stage that receives natively, in a pipeline that does not support it (MR-05).
    """
    node = fields.get("model_runner") or deploy.get("model_runner")
    if node is None or node.value == "v1":
        return "v1", _DEFAULT if node is None else node.source
    architecture = pipeline.architecture(stage.stage_id)
    if not stage.supports_native_mrv2_data_plane:
        logger.warning(
            "stage %d (%s, %s) runs on model runner v2 without its native data plane: payloads take the usual path",
            stage.stage_id,
            stage.model_stage,
            architecture,
        )
    elif session_mode == "duplex" and stage.input_sources and not pipeline.supports_duplex_mrv2:
        raise ConfigError(
            f"pipeline {pipeline.model_type!r} has no duplex sessions on model runner v2, which stage {stage.stage_id} uses",
            where=node.place,
            hint=f"set model_runner: v1 for stage {stage.stage_id}, or session_mode: turn",
            param="model_runner",
        )
    return "v2", node.source
