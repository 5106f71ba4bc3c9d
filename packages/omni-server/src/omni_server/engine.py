"""What the server needs of an engine: a protocol that `omni_core.client.AsyncOmni` fits, and `fake_engine.FakeEngine` too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from omni_core.chat import ServedChat
from omni_core.observe.telemetry import Telemetry
from omni_core.request import LoraAdapter, OmniOutput
from omni_core.speech import SpeechAdapter, SpeechPrompt
from omni_core.stage import ResolvedPipeline


class Engine(Protocol):
    """A pipeline that runs and answers requests."""

    speech: SpeechAdapter | None
    """What the pipeline accepts as speech requests; None if it does not speak."""
    chat: ServedChat | None
    """What conversations the pipeline answers; None if it answers none."""
    telemetry: Telemetry
    """The numbers and traces of the pipeline; the server adds its own."""

    @property
    def pipeline(self) -> ResolvedPipeline | None:
        """The deployment that this runs; None for an engine that was made otherwise."""
        ...

    def generate(
        self,
        prompt: SpeechPrompt | Mapping[str, Any],
        *,
        sampling_params_list: Sequence[Mapping[str, Any]] | None = None,
        request_id: str | None = None,
        timeout_s: float = 600.0,
        lora_request: LoraAdapter | None = None,
        outputs: Collection[int | str] | None = None,
    ) -> AsyncIterator[OmniOutput]:
        """Return an async generator of outputs; the last has `finished`. Closing it aborts the request in all stages.

        `outputs` names the types that are wanted; None is everything.
        """
        ...

    def health(self) -> Mapping[str, Any]:
        """Return `healthy` and `stages`: for each its `stage_id`, `name`, `replica`, `state` and the `reason` of a bad one."""
        ...

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> list[Any]:
        """Call a method of a stage in every replica and return their answers."""
        ...

    async def start(self) -> None:
        """Start every stage and return when all are ready."""
        ...

    async def close(self, drain_timeout_s: float = 30.0) -> None:
        """End every stage and leave nothing behind, after waiting so long for requests."""
        ...
