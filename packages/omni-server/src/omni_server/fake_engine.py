"""A scripted engine for tests of the server and of routes: the text of a request says what happens to it.

| first word of the text | what the request does |
|---|---|
| `stall` | never gives audio |
| `stall-later` | gives one chunk, then nothing more |
| `fail` | fails before any audio |
| `fail-later` | fails after one chunk |
| `bug`, `bug-later` | raises KeyError, before any audio or after one chunk |
| `nothing` | ends without audio |
| `wait-later` | gives one chunk, and ends when the test sets `go_on` |
| `endless` | gives chunks until it is aborted |
| anything else | gives `chunks` chunks of a 440 Hz tone |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_core.chat import CHAT, ServedChat
from omni_core.errors import RequestError, StageDeadError, UnsupportedError
from omni_core.observe.telemetry import Telemetry
from omni_core.request import LoraAdapter, OmniOutput
from omni_core.speech import PreparedSpeech, SpeechAdapter, SpeechPrompt, SpeechTraits
from omni_core.stage import ResolvedPipeline
from omni_server.fake_chat import FakeChat

logger = logging.getLogger(__name__)

TRAITS = SpeechTraits(
    sample_rate=24000,
    channels=1,
    voices=("Vivian", "Ryan"),
    default_voice="Vivian",
    clones=True,
    max_text_chars=1000,
    samples_per_frame=1920,
)


class FakeAdapter(SpeechAdapter):
    """Check text and voice, as every adapter does."""

    def __init__(self, traits: SpeechTraits) -> None:
        self._traits = traits

    @property
    def traits(self) -> SpeechTraits:
        """What the test gave."""
        return self._traits

    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Refuse empty text and unknown voices."""
        if not prompt.text.strip():
            raise RequestError("the text is empty", param="input")
        if prompt.voice is not None and prompt.voice.lower() not in [name.lower() for name in self._traits.voices]:
            hint = "use one of " + ", ".join(self._traits.voices)
            raise RequestError(f"the voice `{prompt.voice}` is unknown", param="voice", hint=hint)
        return PreparedSpeech({})


@dataclass
class FakeEngine:
    """Answer as the text says, and record what was asked."""

    traits: SpeechTraits = TRAITS
    chunks: int = 3
    chunk_frames: int = 5
    stages: tuple[str, ...] = ("talker", "code2wav")
    speaks: bool = True
    dead_stage: int | None = None
    start_error: Exception | None = None
    start_forever: bool = False
    prompts: list[Any] = field(default_factory=list)
    sampling: list[Sequence[Mapping[str, Any]] | None] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    adapters: list[LoraAdapter | None] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    working: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has begun."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request was aborted."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets the requests go on that wait for it (`wait-later`)."""
    closed: bool = False
    calls: list[tuple[int, str]] = field(default_factory=list)
    pipeline: ResolvedPipeline | None = None
    chat: ServedChat | None = None
    """What it answers in conversations; the stages and the traits fit `omni_server.fake_chat`."""
    wanted: list[Collection[int | str] | None] = field(default_factory=list)

    speech: SpeechAdapter | None = field(init=False)
    telemetry: Telemetry = field(init=False)

    def __post_init__(self) -> None:
        self.speech = FakeAdapter(self.traits) if self.speaks else None
        self.telemetry = Telemetry(self.health)

    async def start(self) -> None:
        """Start at once, fail, or wait for ever, as the fields say."""
        logger.info("stage fake ready in 0.0 s")
        if self.start_error is not None:
            raise self.start_error
        if self.start_forever:
            await asyncio.Event().wait()

    async def close(self, drain_timeout_s: float = 30.0) -> None:
        """Record that the engine was closed."""
        self.closed = True
        logger.info("fake engine closed")

    def health(self) -> Mapping[str, Any]:
        """Return the state that the test set."""
        stages = [
            {"stage_id": index, "name": name, "replica": 0, "state": "ready", "reason": ""}
            for index, name in enumerate(self.stages)
        ]
        if self.dead_stage is not None:
            stages[self.dead_stage] |= {"state": "dead", "reason": "ended by signal 9"}
        return {"healthy": self.dead_stage is None, "requests": 0, "stages": stages}

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> list[Any]:
        """Record the call and answer for one replica; stage 1 can do nothing."""
        self.calls.append((stage_id, method))
        if stage_id == 1:
            raise UnsupportedError("this stage computes without torch", where="stage 1 (code2wav)")
        return [[f"/traces/stage{stage_id}/trace.json.gz"] if method == "stop_profile" else []]

    def tone(self, chunk: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return chunk number `chunk` of the tone [n, channels]; the second channel has half the amplitude."""
        size = self.chunk_frames * self.traits.samples_per_frame
        times = (np.arange(size) + chunk * size) / self.traits.sample_rate
        wave = 0.4 * np.sin(2 * np.pi * 440 * times)
        return np.stack([wave / (index + 1) for index in range(self.traits.channels)], axis=1).astype(np.float32)

    async def generate(
        self,
        prompt: SpeechPrompt | Mapping[str, Any],
        *,
        sampling_params_list: Sequence[Mapping[str, Any]] | None = None,
        request_id: str | None = None,
        timeout_s: float = 600.0,
        lora_request: LoraAdapter | None = None,
        outputs: Collection[int | str] | None = None,
    ) -> AsyncGenerator[OmniOutput, None]:
        """Yield what the text of the prompt says."""
        name = request_id or "none"
        self.prompts.append(prompt)
        self.wanted.append(outputs)
        self.sampling.append(sampling_params_list)
        self.ids.append(name)
        self.adapters.append(lora_request)
        if sampling_params_list is not None and len(sampling_params_list) != len(self.stages):
            message = f"{len(sampling_params_list)} objects for {len(self.stages)} stages"
            raise RequestError(message, param="sampling_params_list")
        if isinstance(prompt, SpeechPrompt):
            FakeAdapter(self.traits).prepare(prompt)
            made = self._outputs(prompt.text.split()[0], name)
        else:
            made = FakeChat(self.chat, self.go_on).outputs(prompt[CHAT], name, outputs)
        finished = False
        self.working.set()
        logger.info("began %s", name)
        try:
            async for output in made:
                yield output
            finished = True
        finally:
            if not finished:
                self.aborted.append(name)
                self.released.set()
                logger.info("aborted %s", name)

    async def _outputs(self, order: str, name: str) -> AsyncGenerator[OmniOutput, None]:
        if order == "stall":
            await asyncio.Event().wait()
        if order == "fail":
            raise StageDeadError("the process ended with signal 9", where="stage 0 (talker)")
        if order == "bug":
            raise KeyError("secret")
        count = {"nothing": 0, "stall-later": 1, "fail-later": 1, "bug-later": 1, "wait-later": 1, "endless": 10**9}.get(
            order, self.chunks
        )
        for index in range(count):
            yield OmniOutput(name, 1, "audio", self.tone(index), sample_rate=self.traits.sample_rate)
            await asyncio.sleep(0)
        if order == "stall-later":
            await asyncio.Event().wait()
        if order == "fail-later":
            raise StageDeadError("the process ended with signal 9", where="stage 1 (code2wav)")
        if order == "bug-later":
            raise KeyError("secret")
        if order == "wait-later":
            await self.go_on.wait()
        metrics = {"prompt_tokens": 7.0}
        nothing = np.zeros((0, self.traits.channels), np.float32)
        rate = self.traits.sample_rate
        yield OmniOutput(name, 1, "audio", nothing, sample_rate=rate, finished=True, finish_reason="stop", metrics=metrics)
