"""Pipelines of the fakes, resolved without a checkpoint, a deploy file or a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage, RestartPolicy

_FAKES = "omni_core.testing.fakes"
LIGHT_RUNNER = "omni_core.engine.light_runner:LightRunner"

TALKER = StagePipelineConfig(
    stage_id=0,
    model_stage="talker",
    final_output=True,
    final_output_type="text",
    custom_process_next_stage_input_func=f"{_FAKES}:all_codes",
    async_chunk_process_next_stage_input_func=f"{_FAKES}:chunk_codes",
)
VOCODER = StagePipelineConfig(
    stage_id=1,
    model_stage="vocoder",
    execution_type=ExecutionType.LLM_GENERATION,
    input_sources=(0,),
    final_output=True,
    final_output_type="audio",
)


def fake_pipeline(
    *,
    async_chunk: bool = True,
    text_output: bool = False,
    engine_args: Mapping[int, Mapping[str, Any]] | None = None,
    replicas: Mapping[int, int] | None = None,
    connector_options: Mapping[str, Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    hand_over: str | None = None,
    env: Mapping[str, str] | None = None,
    restart: RestartPolicy | None = None,
    devices: Mapping[int, str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> ResolvedPipeline:
    """Return a talker and a vocoder, ready to start.

    Args:
        async_chunk: Whether chunks travel while the talker works.
        text_output: Whether the talker's codes are an output of the pipeline, too, as text.
        engine_args: For each stage, such as `{1: {"fail": "no memory"}}` (see `fakes.misbehave_at_start`).
        replicas: Number of replicas of a stage, 1 by default.
        connector_options: Options of the connector between the stages.
        stream: Stream policy of the edge.
        hand_over: Target of the hand-over function of both kinds.
        env: Environment of both stages.
        restart: Restart policy of both stages.
        devices: Devices of a stage.
        values: Deploy-level values, such as `active_stream_window`.
    """
    talker = replace(TALKER, final_output=text_output)
    if hand_over is not None:
        talker = replace(
            talker, custom_process_next_stage_input_func=hand_over, async_chunk_process_next_stage_input_func=hand_over
        )
    config = PipelineConfig(model_type="fake", model_arch="FakeModel", stages=(talker, VOCODER))
    edge = ResolvedEdge(
        0, 1, "folder", f"{_FAKES}:FolderConnector", dict(connector_options or {}), dict(stream or {}), async_chunk
    )
    shared = ResolvedStage(
        pipeline=config.model_type,
        topology=talker,
        model="/nowhere",
        architecture="FakeModel",
        architecture_target=f"{_FAKES}:SumVocoder",
        runner=LIGHT_RUNNER,
        async_chunk=async_chunk,
        restart=restart or RestartPolicy(),
        env=dict(env or {}),
    )
    ends: tuple[dict[str, Any], ...] = (
        {"runner": f"{_FAKES}:TokenRunner", "outputs": (edge,)},
        {"topology": VOCODER, "inputs": (edge,)},
    )
    stages = [
        replace(shared, **end, **_own(stage_id, num_replicas=replicas, devices=devices, engine_args=engine_args))
        for stage_id, end in enumerate(ends)
    ]
    return ResolvedPipeline(config, "/nowhere", tuple(stages), async_chunk, platform="cpu", values=dict(values or {}))


def _own(stage_id: int, **by_stage: Mapping[int, Any] | None) -> dict[str, Any]:
    """Return the values that are there for one stage."""
    return {name: values[stage_id] for name, values in by_stage.items() if values and stage_id in values}
