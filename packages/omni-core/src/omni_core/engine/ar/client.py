"""The host's side of an AR engine: takes codes and hidden states off the outputs, and makes the messages that push rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from omni_core.engine.ar.wire import KEY, Extra, unpack
from omni_core.engine.vllm_bridge import EngineCoreRequest, OutputProcessor, SamplingParams
from omni_core.runner import StageOutput

_WITHHELD = "omni_withheld"
Rows = list[Any]
"""Codes of a request as arrays, int32 [Q], or its hidden states as tensors, [K, n, H]."""


class ArOutputProcessor(OutputProcessor):
    """vLLM's output processor, which takes what is ours off the outputs first (`vllm_bridge.TOUCHED["OutputProcessor"]`)."""

    omni_rows: dict[str, Rows]
    """What came for live requests and nobody took yet, by vLLM's own request id."""

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Register a request before it is sent, so that its first codes find their place."""
        super().add_request(request, *args, **kwargs)
        self.omni_rows.setdefault(request.request_id, [])

    def process_outputs(self, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Take what is ours off a slice of outputs, then do what vLLM does."""
        captured = False
        for request_id, found in unpack(engine_core_outputs):
            captured |= isinstance(found, torch.Tensor)
            # A text that ends a request is found here, and the core may have made a step more by the time it hears of it.
            if request_id in self.request_states and request_id in self.omni_rows:
                self.omni_rows[request_id].append(found)
        if captured:
            engine_core_outputs = [output for output in engine_core_outputs if not self._is_part_of_prompt(output)]
        return super().process_outputs(engine_core_outputs, *args, **kwargs)

    def _is_part_of_prompt(self, output: Any) -> bool:
        """Tell whether an output only brings hidden states of a part of the prompt. Its statistics go to the next one.

        To vLLM the first output of a request is the end of its prompt.
        """
        request = self.request_states.get(output.request_id)
        if request is None:
            return False
        stats, events = getattr(request, _WITHHELD, (None, []))
        if not output.new_token_ids and output.finish_reason is None:
            setattr(request, _WITHHELD, (output.prefill_stats or stats, [*events, *(output.events or ())]))
            return True
        if stats is not None or events:
            output.prefill_stats = output.prefill_stats or stats
            output.events = [*events, *(output.events or ())] or None
            setattr(request, _WITHHELD, (None, []))
        return False


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


def add_states(output: StageOutput, rows: Rows, names: tuple[str, ...]) -> int:
    """Empty a request's rows into an output, hidden states [n, H] under each name; return n."""
    if not rows:
        return 0
    states: torch.Tensor = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
    rows.clear()
    output.tensors.update(zip(names, states, strict=True))
    output.internal |= frozenset(names)
    return states.shape[1]


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
