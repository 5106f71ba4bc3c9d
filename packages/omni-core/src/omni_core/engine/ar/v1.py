"""The adapters for vLLM's first model runner: a few overrides, put over the runner's class by the worker.

Runs in the engine core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.engine.ar.capture import Capture
from omni_core.engine.ar.state import ArState
from omni_core.engine.vllm_bridge import AsyncModelRunnerOutput


class ArRunnerMixin:
    """Feed computed inputs and predict frames. Every name used is listed in `vllm_bridge.TOUCHED["GPUModelRunner"]`."""

    omni: ArState

    def _preprocess(self, scheduler_output: Any, num_input_tokens: int, intermediate_tensors: Any = None) -> Any:
        runner: Any = self
        # Said for the graphs' sake: here vLLM would embed the placeholder ids, for nothing.
        wanted, runner.enable_prompt_embeds = runner.enable_prompt_embeds, False
        try:
            prepared = super()._preprocess(scheduler_output, num_input_tokens, intermediate_tensors)  # type: ignore[misc]
        finally:
            runner.enable_prompt_embeds = wanted
        req_ids = runner.input_batch.req_ids
        scheduled = scheduler_output.num_scheduled_tokens
        total = scheduler_output.total_num_scheduled_tokens
        count = len(req_ids)
        embeds = runner.inputs_embeds.gpu[:num_input_tokens]
        self.omni.fill_inputs(
            req_ids,
            # Every row of the batch runs in the step, so with as many tokens as rows each has one.
            None if total == count else np.fromiter(map(scheduled.__getitem__, req_ids), dtype=np.int64, count=count),
            runner.input_batch.num_computed_tokens_cpu[:count],
            runner.positions[:total],
            runner.input_ids.gpu[:total],
            embeds if total == num_input_tokens else embeds[:total],
        )
        return (None, embeds, *prepared[2:])

    def _init_mrope_positions(self, req_state: Any) -> None:
        found = self.omni.rope(req_state.req_id, len(req_state.prompt_token_ids or ()))
        if found is None:
            super()._init_mrope_positions(req_state)  # type: ignore[misc]
        else:
            req_state.mrope_positions, req_state.mrope_position_delta = found

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does, then predict the frames of the rows that sampled."""
        runner: Any = self
        state = runner.execute_model_state
        held = {} if state is None else self._hold_generators()
        if state is not None:
            self.omni.constrain(state.logits)
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        runner.input_batch.generators.update(held)
        if state is None:
            return output
        hidden = state.sample_hidden_states
        has_ends = isinstance(output, AsyncModelRunnerOutput)
        if has_ends:
            # The tokens are still on the device: every row that samples is predicted, ends are dropped on the host.
            sampled = runner.input_batch.prev_sampled_token_ids[:, 0].long()
            rows = np.flatnonzero(~runner.discard_request_mask.np[: len(sampled)]).tolist()
        else:
            rows = self.omni.sampling_rows(output.sampled_token_ids)
            # Through numpy: PyTorch looks at each number of a list for itself.
            sampled = torch.from_numpy(np.array([tokens[0] if tokens else 0 for tokens in output.sampled_token_ids], np.int64))
        if len(rows) < len(sampled):
            index = torch.tensor(rows, dtype=torch.long, device=sampled.device)
            sampled, hidden = sampled[index], hidden[index]
        self.omni.after_sampling(rows, sampled, hidden, has_ends=has_ends)
        return output

    def _hold_generators(self) -> dict[int, Any]:
        """Take the generators of rows whose prompt is not complete out of the batch, and return them.

        vLLM samples such rows too, drops the token and sets their generators back, which those of a CPU cannot do: the step
        would end the engine.
        """
        runner: Any = self
        generators = runner.input_batch.generators
        if not generators or runner.device.type != "cpu":
            return {}
        incomplete = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs]).tolist()
        return {row: generators.pop(row) for row in incomplete if row in generators}


def keep_embeds(runner: Any, capture: Capture) -> None:
    """Let a runner tell `Capture` each step's input embeddings, before the model may write over them."""
    forward = runner._model_forward

    def noting(*args: Any, inputs_embeds: Any = None, **more: Any) -> Any:
        capture.note_embeds(inputs_embeds)
        return forward(*args, inputs_embeds=inputs_embeds, **more)

    runner._model_forward = noting
