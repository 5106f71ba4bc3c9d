"""The host's side of an AR engine: takes codes off the outputs, pushes rows, and turns vLLM's errors into ours."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from omni_core.engine.ar.wire import KEY, Extra, unpack
from omni_core.engine.vllm_bridge import EngineCoreRequest, OutputProcessor, SamplingParams

Rows = list[np.ndarray[Any, Any]]


class ArOutputProcessor(OutputProcessor):
    """vLLM's output processor, which takes the codes off the outputs first (`vllm_bridge.TOUCHED["OutputProcessor"]`)."""

    omni_rows: dict[str, Rows]
    """Codes of live requests that nobody took yet, by vLLM's own request id."""

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Register a request before it is sent, so that its first codes find their place."""
        super().add_request(request, *args, **kwargs)
        self.omni_rows.setdefault(request.request_id, [])

    def process_outputs(self, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Take the codes off a slice of outputs, then do what vLLM does."""
        for request_id, codes in unpack(engine_core_outputs):
            rows = self.omni_rows.get(request_id)
            if rows is not None:
                rows.append(codes)
        return super().process_outputs(engine_core_outputs, *args, **kwargs)


def install(llm: Any) -> dict[str, Rows]:
    """Give an AsyncLLM or LLMEngine our output processor and return where the codes arrive.

    Its output task has captured the object, so the object stays and changes its class.
    """
    processor = llm.output_processor
    processor.omni_rows = {}
    processor.__class__ = ArOutputProcessor
    rows: dict[str, Rows] = processor.omni_rows
    return rows


def take_rows(rows: Rows) -> np.ndarray[Any, Any] | None:
    """Empty a request's rows and return them, int32 [n, Q], or None if there are none."""
    if not rows:
        return None
    taken = np.stack(rows)
    rows.clear()
    return taken


def push_request(request_id: str, rows: torch.Tensor | None, final: bool, limit: int | None = None) -> Any:
    """Return the message that brings rows to a live request, or a higher limit; `request_id` is vLLM's own."""
    extra: Extra = {"push": True, "final": final}
    if limit is not None:
        extra["limit"] = limit
    has_rows = rows is not None and len(rows) > 0
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=None if has_rows else [0],
        prompt_embeds=rows if has_rows else None,
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=1, extra_args={KEY: extra}),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
