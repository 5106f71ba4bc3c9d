"""The worker of an AR engine: calls the model's state before and after vLLM's step. Runs in the engine core's process."""

from __future__ import annotations

from typing import Any

from omni_core.capabilities import HiddenCapture, ModelCapabilities
from omni_core.engine.ar.capture import Capture, StepStates, captured_layers
from omni_core.engine.ar.model_class import capabilities_of
from omni_core.engine.ar.state import ArState, StepCodes
from omni_core.engine.vllm_bridge import AsyncModelRunnerOutput, worker_base


class _WithExtra(AsyncModelRunnerOutput):
    """A model runner's output that is still under way, and what the step gives besides."""

    def __init__(self, output: Any, extra: StepCodes | StepStates) -> None:
        self._output = output
        self._extra = extra

    def get_output(self) -> Any:
        """Wait for both and return the output."""
        output = self._output.get_output()
        self._extra.attach(output)
        return output


class ArWorker(worker_base()):  # type: ignore[misc]
    """vLLM's worker with an `ArState` for models that compute their inputs, or a `Capture` for vLLM's own."""

    omni: ArState | None = None
    omni_capture: Capture | None = None
    _states: StepStates | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and join its state to the model runner."""
        config = self.model_config
        model_class, _ = config.registry.resolve_model_cls(config.architectures, config)
        capabilities = capabilities_of(model_class)
        if self.use_v2_model_runner and capabilities.computes_inputs:
            from omni_core.engine.ar.v2 import ArModelState

            if not hasattr(model_class, "get_model_state_cls"):
                model_class.get_model_state_cls = lambda _: ArModelState
        super().load_model(*args, **kwargs)
        if capabilities.computes_inputs:
            self._join_state(capabilities)
        elif capabilities.capture is not None:
            self._join_capture(capabilities.capture)

    def _join_state(self, capabilities: ModelCapabilities) -> None:
        runner, config = self.model_runner, self.model_config
        self.omni = ArState(
            runner.get_model(),
            capabilities,
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

    def _join_capture(self, capture: HiddenCapture) -> None:
        runner, config = self.model_runner, self.model_config
        layers = captured_layers(capture, config.hf_config)
        self.omni_capture = Capture(runner, layers, switches=config.enforce_eager, device=self.device)
        if self.use_v2_model_runner:
            from omni_core.engine.ar import v2

            v2.keep_embeds(runner.model_state, self.omni_capture)
        else:
            from omni_core.engine.ar import v1

            v1.keep_embeds(runner, self.omni_capture)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Bring the slots up to date, then run vLLM's step and take what it computed."""
        if self.omni is not None:
            self.omni.begin(scheduler_output)
        if self.omni_capture is None:
            return super().execute_model(scheduler_output)
        self.omni_capture.begin(scheduler_output)
        output = super().execute_model(scheduler_output)
        self._states = self.omni_capture.take(keep=self.is_driver_worker)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample and add the step's codes or hidden states to the output."""
        output = super().sample_tokens(grammar_output)
        extra: StepCodes | StepStates | None = self.omni.take_codes() if self.omni is not None else None
        if self.omni_capture is not None:
            extra, self._states = self._states, None
        if extra is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return _WithExtra(output, extra)
        extra.attach(output)
        return output

    def omni_live_slots(self) -> int:
        """Return the number of requests that something is kept for (tests and diagnosis, through collective_rpc)."""
        kept = self.omni or self.omni_capture
        return 0 if kept is None else kept.live
