"""The scheduler of an AR engine: holds positions back that may not be computed yet, and packs what a step gives besides tokens.

Runs in the engine core. A position waits for its row if the model takes rows while the request runs, and for the request's
reader if that has not taken what was generated before. For requests with neither nothing is added to a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from omni_core.engine.ar.wire import CODES, ROWS, STATES, CapturedRows, Extra, RowBatch, extra_of, pack, pack_states
from omni_core.engine.vllm_bridge import AsyncScheduler, PauseState, Scheduler, envs

_UNLIMITED = 1 << 30


@dataclass
class _Ledger:
    """What one request may compute."""

    prompt_len: int
    received: int = 0
    final: bool = False
    """Whether all rows are there; from the start for requests that are not gated."""
    limit: int | None = None
    """Tokens that it may generate."""
    end: int = 0
    """Position that it may compute up to, by its rows and its limit."""
    pending: list[torch.Tensor] = field(default_factory=list)
    """Rows that the worker does not have yet."""
    delivered: int = 0
    told_final: bool = False
    captured: int = 0
    """Positions whose hidden states went to the host."""

    @classmethod
    def of(cls, extra: Extra, prompt_len: int) -> _Ledger | None:
        """Return a new request's ledger, None for one that may compute what it wants and is not captured."""
        gated, limit = bool(extra.get("gated")), extra.get("limit")
        if not gated and limit is None and not extra.get("capture"):
            return None
        ledger = cls(prompt_len, final=not gated, told_final=not gated)
        ledger.note(None, final=False, limit=limit)
        return ledger

    def note(self, rows: torch.Tensor | None, *, final: bool, limit: int | None) -> None:
        """Take rows, their end, and a new limit."""
        if rows is not None and len(rows):
            self.pending.append(rows)
            self.received += len(rows)
        self.final |= final
        self.limit = self.limit if limit is None else limit
        self.end = _UNLIMITED if self.final else self.received
        if self.limit is not None:
            # The last position of the prompt generates the first token.
            self.end = min(self.end, self.prompt_len - 1 + self.limit)

    def take(self) -> RowBatch | None:
        if not self.pending and self.told_final == self.final:
            return None
        batch = RowBatch(start=self.delivered, rows=self.pending, final=self.final)
        self.pending, self.delivered, self.told_final = [], self.received, self.final
        return batch


class GatedScheduling:
    """Mixin over vLLM's schedulers. Every override is named in `vllm_bridge.TOUCHED["Scheduler"]`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ledgers: dict[str, _Ledger] = {}
        self._plain_lookahead = super()._reserve_prefill_lookahead  # type: ignore[misc]
        self._holders: set[str] = set()
        self._max_holders: int = self.scheduler_config.max_num_seqs  # type: ignore[attr-defined]
        self._slice_size = int(envs.VLLM_V1_OUTPUT_PROC_CHUNK_SIZE)

    def add_request(self, request: Any) -> None:
        """Queue a request, or take rows or a limit for one that is live; those for one that is gone are dropped."""
        extra = extra_of(request.sampling_params)
        if not extra.get("push"):
            if (ledger := _Ledger.of(extra, request.num_prompt_tokens)) is not None:
                self._ledgers[request.request_id] = ledger
            super().add_request(request)  # type: ignore[misc]
            return
        ledger = self._ledgers.get(request.request_id)
        if ledger is None:
            return
        ledger.note(request.prompt_embeds, final=bool(extra.get("final")), limit=extra.get("limit"))

    def _may_go_on(self, request: Any) -> bool:
        ledger = self._ledgers.get(request.request_id)
        return ledger is None or request.num_computed_tokens < ledger.end

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        # For each request of each step, so that what it costs counts.
        allowed: int = self._plain_lookahead(request, num_computed_tokens, num_new_tokens)
        ledger = self._ledgers.get(request.request_id)
        if ledger is None:
            return allowed
        left = ledger.end - num_computed_tokens
        return allowed if allowed <= left else max(0, left)

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        # A preempted request keeps its slot in the worker, so that newcomers may not take more than the rest.
        request_id = request.request_id
        takes_slot = _computes_inputs(request)
        if takes_slot and request_id not in self._holders and len(self._holders) >= self._max_holders:
            return False
        if not self._may_go_on(request):
            return False
        if not super()._handle_blocked_waiting_request(request):  # type: ignore[misc]
            return False
        if takes_slot:
            self._holders.add(request_id)
        return True

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Return vLLM's decision with the new rows of the requests that run in it."""
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self._ledgers:
            batches = {
                request_id: batch
                for request_id in output.num_scheduled_tokens
                if (ledger := self._ledgers.get(request_id)) is not None and (batch := ledger.take()) is not None
            }
            if batches:
                setattr(output, ROWS, batches)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Return vLLM's outputs with the step's codes or hidden states packed on them."""
        if getattr(model_runner_output, STATES, False):
            return self._update_with_states(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        codes = getattr(model_runner_output, CODES, None)
        if codes is not None:
            for batch in outputs.values():
                pack(batch.outputs, codes.numpy(), self._slice_size)
        return outputs

    def _update_with_states(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        captured = model_runner_output.pooler_output
        for row, request_id in enumerate(model_runner_output.req_ids):
            if captured[row] is not None:
                captured[row] = self._unsent(request_id, captured[row])
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for batch in outputs.values():
            for output in batch.outputs:
                held, ledger = output.pooling_output, self._ledgers.get(output.request_id)
                if held is not None and ledger is not None:
                    ledger.captured = held.start + held.states.shape[1]
            pack_states(batch.outputs, self._slice_size)
        return outputs

    def _unsent(self, request_id: str, rows: CapturedRows) -> CapturedRows | None:
        """Return the rows that the host does not have: what a preempted request computes again, it has."""
        ledger = self._ledgers.get(request_id)
        known = 0 if ledger is None else ledger.captured - rows.start
        if known <= 0:
            return rows
        return CapturedRows(rows.start + known, rows.states[:, known:]) if known < rows.states.shape[1] else None

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # Prompts may share what is computed of them; generated ids do not tell which frames stood beside them.
        if _computes_inputs(request):
            request.skip_reading_prefix_cache = True
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def has_requests(self) -> bool:
        """Tell whether there is work. Requests that wait for rows or for their reader are none; the core sleeps then."""
        if not super().has_requests():  # type: ignore[misc]
            return False
        if not self._ledgers or self.has_finished_requests() or self.pause_state != PauseState.UNPAUSED:  # type: ignore[attr-defined]
            return True
        return any(map(self._may_go_on, self.requests.values()))  # type: ignore[attr-defined]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._ledgers.pop(request.request_id, None)
        self._holders.discard(request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


def _computes_inputs(request: Any) -> bool:
    return "inputs" in extra_of(request.sampling_params)


class ArScheduler(GatedScheduling, Scheduler):
    """For engines that schedule a step when the last one is done (CPU)."""


class AsyncArScheduler(GatedScheduling, AsyncScheduler):
    """For engines that schedule a step while the last one runs (CUDA)."""
