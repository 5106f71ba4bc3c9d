"""The adapter for vLLM's first model runner: two overrides, put over the runner's class by the worker.

Runs in the engine core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.engine.ar.state import ArState
from omni_core.engine.vllm_bridge import AsyncModelRunnerOutput


class ArRunnerMixin:
    """Feed computed inputs and predict frames. Every name used is listed in `vllm_bridge.TOUCHED["GPUModelRunner"]`."""

    omni: ArState

    def _preprocess(self, scheduler_output: Any, num_input_tokens: int, intermediate_tensors: Any = None) -> Any:
        prepared = super()._preprocess(scheduler_output, num_input_tokens, intermediate_tensors)  # type: ignore[misc]
        runner: Any = self
        req_ids = runner.input_batch.req_ids
        scheduled = scheduler_output.num_scheduled_tokens
        total = scheduler_output.total_num_scheduled_tokens
        count = len(req_ids)
        self.omni.fill_inputs(
            req_ids,
            # Every row of the batch runs in the step, so with as many tokens as rows each has one.
            None if total == count else np.fromiter(map(scheduled.__getitem__, req_ids), dtype=np.int64, count=count),
            runner.input_batch.num_computed_tokens_cpu[:count],
            runner.positions[:total],
            runner.input_ids.gpu[:total],
            runner.inputs_embeds.gpu[:total],
        )
        return (None, runner.inputs_embeds.gpu[:num_input_tokens], *prepared[2:])

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does, then predict the frames of the rows that sampled."""
        runner: Any = self
        state = runner.execute_model_state
        held = {} if state is None else self._hold_generators()
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
            sampled = torch.tensor([tokens[0] if tokens else 0 for tokens in output.sampled_token_ids])
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
