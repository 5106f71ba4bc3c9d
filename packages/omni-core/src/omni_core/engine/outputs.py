"""What a caller gets of a final stage's output: one value of the declared type, and everything else by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from omni_core.engine.flight import Flight
from omni_core.engine.messages import Output
from omni_core.engine.stage_process import StageProcess
from omni_core.payload import decode_payload
from omni_core.pipeline import OutputType, StagePipelineConfig, parse_output_type
from omni_core.request import OmniOutput

_GENERIC_KEYS = ("model_outputs", "hidden")
"""Producers' names for their one output, whatever its type (EO-09)."""


def typed_output(
    stage: StagePipelineConfig,
    facts: Mapping[str, Any],
    message: Output,
    *,
    request_id: str,
    finished: bool,
    finish_reason: str | None,
    metrics: Mapping[str, float],
) -> OmniOutput:
    """Return a stage's message as users see it: `data` by the stage's final output type, audio as float32 [n, channels]."""
    kind = stage.final_output_type or parse_output_type(stage.engine_output_type)[0].value
    tensors = decode_payload(message.payload)
    if message.token_ids:
        tensors.setdefault("token_ids", np.asarray(message.token_ids, np.int64))
    data: Any
    if kind == OutputType.TEXT:
        data = message.text
    elif kind == OutputType.TOKEN_IDS:
        data = [int(token) for token in np.asarray(tensors.get("token_ids", ())).reshape(-1)]
    else:
        data = next((tensors[key] for key in (kind, *_GENERIC_KEYS) if key in tensors), None)
    if kind == OutputType.AUDIO:
        data = _samples(data, int(facts.get("channels", 1)))
    return OmniOutput(
        request_id,
        stage.stage_id,
        kind,
        data,
        tensors,
        sample_rate=facts.get("sample_rate") if kind == OutputType.AUDIO else None,
        finished=finished,
        finish_reason=finish_reason,
        metrics=dict(metrics),
        reply=message.reply,
        stage_finish_reason=(message.finish_reason or "stop") if message.finished else None,
        stage_metrics=message.metrics if message.finished else {},
    )


def output_of(flight: Flight, process: StageProcess, message: Output) -> OmniOutput:
    """Return what a stage made of a request as its caller gets it; the last piece tells how the whole request ended."""
    last = flight.finished == flight.finals and flight.events.empty()
    return typed_output(
        process.stage.topology,
        process.facts,
        message,
        request_id=flight.request.request_id,
        finished=last,
        finish_reason=(flight.finish_reason or "stop") if last else None,
        metrics=flight.metrics if last else {},
    )


def _samples(data: Any, channels: int) -> np.ndarray[Any, Any]:
    if data is None:
        return np.zeros((0, channels), np.float32)
    return np.asarray(data, np.float32).reshape(-1, channels)
