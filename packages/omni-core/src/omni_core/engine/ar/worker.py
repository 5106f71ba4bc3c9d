"""The worker of an AR engine: calls the model's state before and after vLLM's step. Runs in the engine core's process."""

from __future__ import annotations

from typing import Any

from omni_core.engine.ar.model_class import capabilities_of
from omni_core.engine.ar.state import ArState, StepCodes
from omni_core.engine.vllm_bridge import AsyncModelRunnerOutput, worker_base


class _WithCodes(AsyncModelRunnerOutput):
    """A model runner's output that is still under way, and the step's codes."""

    def __init__(self, output: Any, codes: StepCodes) -> None:
        self._output = output
        self._codes = codes

    def get_output(self) -> Any:
        """Wait for both and return the output."""
        output = self._output.get_output()
        self._codes.attach(output)
        return output


class ArWorker(worker_base()):  # type: ignore[misc]
    """vLLM's worker with an `ArState`, for models that compute their inputs."""

    omni: ArState

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and join its state to the model runner."""
        config = self.model_config
        model_class, _ = config.registry.resolve_model_cls(config.architectures, config)
        if self.use_v2_model_runner:
            from omni_core.engine.ar.v2 import ArModelState

            if not hasattr(model_class, "get_model_state_cls"):
                model_class.get_model_state_cls = lambda _: ArModelState
        super().load_model(*args, **kwargs)
        runner = self.model_runner
        self.omni = ArState(
            runner.get_model(),
            capabilities_of(model_class),
            self.vllm_config.scheduler_config.max_num_seqs,
            config.get_inputs_embeds_size(),
            config.dtype,
            self.device,
        )
        if self.use_v2_model_runner:
            runner.model_state.omni = self.omni
        else:
            from omni_core.engine.ar.v1 import ArRunnerMixin

            runner.__class__ = type(f"Ar{type(runner).__name__}", (ArRunnerMixin, type(runner)), {})
            runner.omni = self.omni

    def execute_model(self, scheduler_output: Any) -> Any:
        """Bring the slots up to date, then run vLLM's step."""
        self.omni.begin(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample and add the step's codes to the output."""
        output = super().sample_tokens(grammar_output)
        codes = self.omni.take_codes()
        if codes is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return _WithCodes(output, codes)
        codes.attach(output)
        return output

    def omni_live_slots(self) -> int:
        """Return the number of slots in use (tests and diagnosis, through collective_rpc)."""
        return self.omni.live
