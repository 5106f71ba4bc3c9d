"""The adapters for vLLM's second model runner: its own hook for models, a model state.

Runs in the engine core. `enable_prompt_embeds` is set for stages whose model computes its inputs, because the runner asks for
input embeddings only then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.engine.ar.capture import Capture
from omni_core.engine.ar.state import ArState
from omni_core.engine.vllm_bridge import DefaultModelState


class ArModelState(DefaultModelState):
    """Feed computed inputs and predict frames (`vllm_bridge.TOUCHED["DefaultModelState"]`)."""

    omni: ArState

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Take a request, with the model's own positions where it has them."""
        # All that were computed before a preemption count as its prompt.
        found = self.omni.rope(new_req_data.req_id, len(new_req_data.prefill_token_ids or ()))
        if found is None or self.rope_state is None:
            super().add_request(req_index, new_req_data)
            return
        self.rope_state.init_prefill_positions(req_index, _Positions(found), new_req_data.prefill_token_ids, mm_features=[])
        if self.prompt_embeds_state is not None:
            self.prompt_embeds_state.add_request(req_index, new_req_data)

    def prepare_inputs_embeds(self, scheduled_encoder_inputs: Any, input_batch: Any, req_states: Any) -> torch.Tensor:
        """Return the input embeddings [T, H] of a step, padding included."""
        count = input_batch.num_tokens
        self.omni.fill_inputs(
            input_batch.req_ids,
            None if count == input_batch.num_reqs else input_batch.num_scheduled_tokens[: input_batch.num_reqs],
            input_batch.num_computed_tokens_np[: input_batch.num_reqs],
            input_batch.positions[:count].long(),
            input_batch.input_ids[:count],
            self.inputs_embeds[:count],
        )
        embeds: torch.Tensor = self.inputs_embeds[: input_batch.num_tokens_after_padding]
        return embeds

    def custom_sampler(self, sampler: Any) -> tuple[Any, None]:
        """Return the sampler, followed by the prediction of frames."""
        return _PredictingSampler(sampler, self), None


class _Positions:
    """A model as vLLM's state of positions asks it, with the answer ready."""

    def __init__(self, found: tuple[torch.Tensor, int]) -> None:
        self._found = found

    def get_mrope_input_positions(self, input_tokens: Any, mm_features: Any) -> tuple[torch.Tensor, int]:
        return self._found


class _PredictingSampler:
    """vLLM's sampler and, after it, `ArState.after_sampling`. It waits for nothing on the device."""

    def __init__(self, sampler: Any, state: ArModelState) -> None:
        self._sampler = sampler
        self._state = state
        self._hidden: torch.Tensor | None = None
        # The runner passes the rows it samples from through compute_logits right before it calls the sampler.
        model = state.model
        compute_logits = model.compute_logits

        def remember(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._hidden = hidden_states
            return compute_logits(hidden_states, *args, **kwargs)

        model.compute_logits = remember

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        self._state.omni.constrain(logits)
        output = self._sampler(logits, input_batch)
        hidden, self._hidden = self._hidden, None
        count = input_batch.num_reqs
        done = input_batch.num_computed_tokens_np[:count] + input_batch.num_scheduled_tokens[:count]
        rows = np.flatnonzero(done >= input_batch.prefill_len_np[:count]).tolist()
        sampled = output.sampled_token_ids[:, 0].long()
        if len(rows) < count and hidden is not None:
            index = torch.tensor(rows, dtype=torch.long, device=sampled.device)
            sampled, hidden = sampled[index], hidden[index]
        if hidden is not None:
            self._state.omni.after_sampling(rows, sampled, hidden)
        return output


def keep_embeds(state: Any, capture: Capture) -> None:
    """Let a model state tell `Capture` each step's input embeddings, before the model may write over them."""
    prepare = state.prepare_inputs_embeds

    def noting(*args: Any) -> Any:
        embeds = prepare(*args)
        capture.note_embeds(embeds)
        return embeds

    state.prepare_inputs_embeds = noting
