"""What an AR model's worker keeps for its requests: stable slots, the rows of the next inputs, and a step's codes.

Runs in the engine core. Both model runners use it (`v1.py`, `v2.py`): they call `fill_inputs` before a forward pass and
`after_sampling` after it; the worker calls `begin` before both and `take_codes` after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling
from omni_core.engine.ar.model import ArModel
from omni_core.engine.ar.requests import mtp_sampling
from omni_core.engine.ar.wire import CODES, ROWS, RowBatch, extra_of
from omni_core.payload import decode_payload

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Slot:
    """One request's constants in the worker."""

    stops: frozenset[int]
    sampling: MtpSampling
    generator: torch.Generator | None


@dataclass(slots=True)
class StepCodes:
    """The codes of one step on their way to the host."""

    rows: list[int]
    """Batch rows, in the order of `codes`."""
    stops: list[frozenset[int]] | None
    """Token ids that end each row's request, whose frame is dropped; None where that was done before the prediction."""
    codes: torch.Tensor
    """Whole numbers [n, Q] on the host, complete once `ready` has happened."""
    ready: Any = None
    """Event on the device, None where there is nothing to wait for."""

    def attach(self, output: Any) -> None:
        """Put the codes on a model runner's output whose sampled tokens are on the host."""
        if self.ready is not None:
            self.ready.synchronize()
        sampled = output.sampled_token_ids
        numbers: list[int | None] = [None] * len(output.req_ids)
        for number, row in enumerate(self.rows):
            if self.stops is None or (sampled[row] and sampled[row][0] not in self.stops[number]):
                numbers[row] = number
        output.pooler_output = numbers
        setattr(output, CODES, self.codes)


class ArState:
    """Slots, history and randomness of an AR model's requests.

    Args:
        model: The model; its capabilities say `computes_inputs`.
        capabilities: What the model declares.
        max_num_seqs: Number of slots.
        hidden_size: Width H of an input embedding.
        dtype: Of the input embeddings.
        device: Of the model.
    """

    def __init__(
        self,
        model: ArModel,
        capabilities: ModelCapabilities,
        max_num_seqs: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._model = model
        self._mtp: MtpCapability | None = capabilities.mtp
        self._gated = capabilities.gated_inputs
        self._constrains = capabilities.constrains_sampling
        self._device = device
        self._slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs))[::-1]
        self._requests: list[_Slot | None] = [None] * max_num_seqs
        self._received = np.zeros(max_num_seqs, dtype=np.int64)
        # What mtp returned, and the position it is meant for: a decode step gathers it instead of asking omni_embed.
        self._next_rows = torch.zeros(max_num_seqs, hidden_size, dtype=dtype, device=device)
        self._next_position = np.full(max_num_seqs, -1, dtype=np.int64)
        self._unsorted: torch.Tensor | None = None
        self._uniforms: torch.Tensor | None = None
        self._req_ids: list[str] = []
        self._batch: IntArray | None = None
        self._batch_device = torch.empty(0, dtype=torch.long, device=device)
        self._following: IntArray = np.empty(0, dtype=np.int64)
        self._codes: StepCodes | None = None

    @property
    def live(self) -> int:
        """The number of slots in use."""
        return len(self._slots)

    # -- before a step ---------------------------------------------------------------------------------------------

    def begin(self, scheduler_output: Any) -> None:
        """Free the slots of finished requests, give slots to new ones and take the rows that came."""
        batches = getattr(scheduler_output, ROWS, None)
        if not (batches or scheduler_output.finished_req_ids or scheduler_output.scheduled_new_reqs):
            return
        with torch.inference_mode():
            # Not on preemption: a preempted request comes back and its history is what it is recomputed from.
            for request_id in scheduler_output.finished_req_ids:
                self._end(request_id)
            for request in scheduler_output.scheduled_new_reqs:
                if request.req_id not in self._slots:
                    self._admit(request)
            for request_id, batch in (batches or {}).items():
                self._ingest(self._slots[request_id], batch)

    def _ingest(self, slot: int, batch: RowBatch) -> None:
        start = batch["start"]
        for rows in batch["rows"]:
            self._model.omni_ingest(slot, start, rows.to(self._device))
            start += len(rows)
        self._received[slot] = np.iinfo(np.int64).max if batch["final"] else start

    def _end(self, request_id: str) -> None:
        slot = self._slots.pop(request_id, None)
        if slot is None:
            return
        self._model.omni_end(slot)
        self._requests[slot] = None
        self._next_position[slot] = -1
        self._free.append(slot)
        self._req_ids = []

    def _admit(self, request: Any) -> None:
        params = request.sampling_params
        extra = extra_of(params)
        if "inputs" not in extra:
            return  # one of vLLM's own warm-up requests
        slot = self._free.pop()
        self._slots[request.req_id] = slot
        self._received[slot] = 0 if extra.get("gated") else np.iinfo(np.int64).max
        stops = {*(params.stop_token_ids or ())}
        if params.eos_token_id is not None:
            stops.add(params.eos_token_id)
        sampling = mtp_sampling(params, self._mtp.sampling) if self._mtp else MtpSampling()
        self._requests[slot] = _Slot(frozenset(stops), sampling, self._generator(params, sampling))
        # A copy, because arrays over immutable bytes cannot become tensors without a warning.
        self._model.omni_begin(slot, decode_payload(bytearray(extra["inputs"])), len(request.prompt_token_ids))

    def rope(self, request_id: str, length: int) -> tuple[torch.Tensor, int] | None:
        """Return a request's positions in three dimensions, where its model has `omni_rope`.

        Args:
            request_id: The request.
            length: Positions wanted. Those behind the prompt follow on as the model's next ones do.

        Returns:
            int64 [3, length] on the host, and what is to be added to a position behind them.
        """
        slot = self._slots.get(request_id)
        own = getattr(self._model, "omni_rope", None)
        if slot is None or own is None:
            return None
        positions, delta = own(slot)
        if (missing := length - positions.shape[1]) > 0:
            following = torch.arange(positions.shape[1], length) + delta
            positions = torch.cat([positions, following.expand(3, missing)], dim=1)
        return positions[:, :length], int(delta)

    def _generator(self, params: Any, sampling: MtpSampling) -> torch.Generator | None:
        if self._mtp is None or sampling.greedy or not (self._mtp.per_row_generators or self._mtp.sample_uniforms):
            return None
        generator = torch.Generator(device=self._device)
        model_seed = getattr(self._model, "get_mtp_seed", None)
        seed = model_seed(params) if model_seed is not None else params.seed
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return generator

    # -- inputs ----------------------------------------------------------------------------------------------------

    def fill_inputs(
        self,
        req_ids: list[str],
        counts: IntArray | None,
        computed: IntArray,
        positions: torch.Tensor,
        token_ids: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Write a step's input embeddings into `out` [T, H].

        Args:
            req_ids: The batch, one id for each row.
            counts: Tokens scheduled for each row, [B]; their sum is T. None where each row has one.
            computed: Positions computed before this step, [B].
            positions: Position of each token, int64 [T].
            token_ids: Token ids [T]; meaningful where the request has real ids.
            out: Where to write.
        """
        self._bind(req_ids)
        self._following = np.add(computed, 1 if counts is None else counts, dtype=np.int64)
        batch = self._batch
        if batch is None:
            out.zero_()
            return
        cached = self._next_position[batch] == computed
        if counts is None:
            if cached.all():
                if self._unsorted is not None:
                    out.copy_(self._unsorted)
                else:
                    torch.index_select(self._next_rows, 0, self._batch_device, out=out)
                return
            counts = np.ones(len(batch), dtype=np.int64)
        self._sort()
        token_slots = torch.from_numpy(np.repeat(batch, counts)).to(self._device)
        cached &= counts == 1
        if not cached.any():
            out.copy_(self._model.omni_embed(token_slots, positions, token_ids))
            return
        # Rows with a cached input keep it whoever joins the batch, so that company does not change a request's numbers.
        starts = np.cumsum(counts) - counts
        known = torch.from_numpy(starts[cached]).to(self._device)
        asked = torch.from_numpy(np.flatnonzero(np.repeat(~cached, counts))).to(self._device)
        out[known] = self._next_rows[token_slots[known]]
        out[asked] = self._model.omni_embed(token_slots[asked], positions[asked], token_ids[asked]).to(out.dtype)

    def _bind(self, req_ids: list[str]) -> None:
        if req_ids == self._req_ids:
            return
        self._sort()
        slots = [self._slots.get(request_id) for request_id in req_ids]
        self._req_ids = list(req_ids)
        if None in slots:
            self._batch = None
            return
        self._batch = np.array(slots, dtype=np.int64)
        self._batch_device = torch.from_numpy(self._batch).to(self._device)

    def constrain(self, logits: torch.Tensor) -> None:
        """Let the model change a step's logits [B, V], one row for each of the batch's."""
        if not self._constrains or self._batch is None:
            return
        positions = torch.from_numpy(self._following).to(self._device)
        self._model.omni_constrain(
            self._batch_device, positions, logits, [request.sampling for request in self._of(self._batch)]
        )

    # -- after sampling --------------------------------------------------------------------------------------------

    def sampling_rows(self, sampled: Sequence[Sequence[int]]) -> list[int]:
        """Return the batch rows that sampled a token which is no end of their request."""
        if self._batch is None:
            return []
        requests = self._requests
        return [
            row
            for row, (slot, tokens) in enumerate(zip(self._batch.tolist(), sampled, strict=True))
            if tokens and tokens[0] not in requests[slot].stops  # type: ignore[union-attr]
        ]

    def after_sampling(self, rows: list[int], token_ids: torch.Tensor, hidden: torch.Tensor, *, has_ends: bool = True) -> None:
        """Predict the frames of the rows that sampled, and keep them for the next step and for the host.

        Args:
            rows: Batch rows, [n].
            token_ids: What they sampled, int64 [n].
            hidden: The hidden states they sampled from, [n, H].
            has_ends: Whether tokens that end their request may be among them.
        """
        if self._mtp is None or self._batch is None or not rows:
            return
        whole = len(rows) == len(self._batch)
        slots = self._batch if whole else self._batch[rows]
        following = self._following if whole else self._following[rows]
        slots_device = self._batch_device if whole else torch.from_numpy(slots).to(self._device)
        positions = torch.from_numpy(following).to(self._device)
        model = self._model
        conditioning = model.omni_condition(slots_device, positions)
        extra = self._extra(self._mtp, slots)
        if self._mtp.accepts_slots:
            extra["slots"] = slots_device
        if self._mtp.accepts_positions:
            extra["positions"] = positions
        embeds, codes = model.mtp(token_ids, model.embed_input_ids(token_ids), hidden, conditioning, **extra)
        model.omni_record(slots_device, positions, codes)
        self._remember(slots_device, embeds.to(self._next_rows.dtype), whole=whole)
        # Without the row of that position the conditioning was not whole; omni_embed is asked when the row is there.
        self._next_position[slots] = np.where(following < self._received[slots], following, -1) if self._gated else following
        self._keep(rows, self._stops(slots) if has_ends else None, codes)

    def _remember(self, slots_device: torch.Tensor, embeds: torch.Tensor, *, whole: bool) -> None:
        if whole:
            # Sorted into slots when the batch changes; most steps have the batch of the one before and take them as they are.
            self._unsorted = embeds
            return
        self._sort()
        self._next_rows.index_copy_(0, slots_device, embeds)

    def _sort(self) -> None:
        embeds, self._unsorted = self._unsorted, None
        if embeds is not None:
            self._next_rows.index_copy_(0, self._batch_device, embeds)

    def _extra(self, mtp: MtpCapability, slots: IntArray) -> dict[str, Any]:
        if not (mtp.accepts_req_infos or mtp.per_row_generators or mtp.sample_uniforms):
            return {}
        requests = self._of(slots)
        extra: dict[str, Any] = {}
        if mtp.accepts_req_infos:
            extra["req_infos"] = [request.sampling for request in requests]
        if mtp.per_row_generators:
            extra["generators"] = [request.generator for request in requests]
        if mtp.sample_uniforms:
            if self._uniforms is None:
                shape = (len(self._requests), mtp.sample_uniforms.steps, mtp.sample_uniforms.vocab_size)
                self._uniforms = torch.zeros(shape, device=self._device)
            for row, request in enumerate(requests):
                if request.generator is not None:
                    self._uniforms[row].uniform_(generator=request.generator)
            extra["uniforms"] = self._uniforms[: len(requests)]
        return extra

    def _stops(self, slots: IntArray) -> list[frozenset[int]]:
        return [request.stops for request in self._of(slots)]

    def _of(self, slots: IntArray) -> list[_Slot]:
        return [request for slot in slots.tolist() if (request := self._requests[slot]) is not None]

    def _keep(self, rows: list[int], stops: list[frozenset[int]] | None, codes: torch.Tensor) -> None:
        if self._device.type == "cpu":
            self._codes = StepCodes(rows, stops, codes)  # packed as int32, which the device should do where there is one
            return
        host = codes.to(torch.int32).to("cpu", non_blocking=True)
        ready = torch.Event(device=self._device)
        ready.record()
        self._codes = StepCodes(rows, stops, host, ready)

    def take_codes(self) -> StepCodes | None:
        """Return the step's codes once, None if it has none."""
        codes, self._codes = self._codes, None
        return codes
