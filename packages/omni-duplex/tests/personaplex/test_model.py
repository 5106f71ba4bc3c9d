"""The plugin in the frontend: turns out of frames, one fed request for each session, settings that may change and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import StageDeadError
from omni_core.request import OmniOutput
from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioIn, AudioOut, Fence, Listen, Output, SessionConfig, TextOut, TurnEnd
from omni_duplex.personaplex.model import PAUSE_FRAMES, PersonaPlex, PersonaPlexStream, TurnGate

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

PAD = 3
LOUD, QUIET = np.full(1920, 0.1, np.float32), np.full(1920, 0.001, np.float32)
FENCE = Fence("s")
UNIT = AudioIn(np.zeros(1920, np.float32), 24_000, FENCE)


def kinds(outputs: list[Output]) -> list[str]:
    return [type(output).__name__ for output in outputs]


class TestTurns:
    """What becomes of the network's frames, which never stop."""

    def frames(self, gate: TurnGate, *frames: tuple[int, str, Any]) -> list[str]:
        return ["+".join(kinds(gate.take(*frame, FENCE))) for frame in frames]

    def test_a_turn_begins_with_a_word_or_a_sound_and_ends_with_a_pause(self) -> None:
        gate = TurnGate(frozenset({0, PAD}))

        found = self.frames(
            gate, (PAD, "", QUIET), (9, " hi", QUIET), (PAD, "", LOUD), *[(PAD, "", QUIET)] * (PAUSE_FRAMES + 1)
        )

        pause = ["AudioOut"] * (PAUSE_FRAMES - 1)
        assert found == ["Listen", "TextOut+AudioOut", "AudioOut", *pause, "AudioOut+TurnEnd", "Listen"]
        assert self.frames(gate, (0, "", LOUD)) == ["AudioOut"]

    def test_a_word_within_a_pause_goes_on_with_the_turn(self) -> None:
        gate = TurnGate(frozenset({PAD}))
        silence = [(PAD, "", QUIET)] * (PAUSE_FRAMES - 1)

        found = self.frames(gate, (9, "a", LOUD), *silence, (9, "", QUIET), *silence)

        assert not any("TurnEnd" in found_in for found_in in found)

    def test_what_is_muted_stays_so_up_to_the_next_pause(self) -> None:
        gate = TurnGate(frozenset({PAD}))
        self.frames(gate, (9, "a", LOUD))

        gate.mute()
        found = self.frames(gate, (9, "b", LOUD), *[(PAD, "", QUIET)] * PAUSE_FRAMES, (9, "c", LOUD))

        assert found == ["Listen"] * (PAUSE_FRAMES + 1) + ["TextOut+AudioOut"]

    def test_muting_silence_mutes_nothing(self) -> None:
        gate = TurnGate(frozenset({PAD}))

        gate.mute()

        assert self.frames(gate, (9, "a", LOUD)) == ["TextOut+AudioOut"]


class Request:
    """A request that says a word in every frame; the audio comes first, then the text, as it may happen."""

    def __init__(self, opening: Mapping[str, Any], error: Exception | None = None) -> None:
        self.opening = opening
        self.heard: list[Any] = []
        self.is_closed = False
        self._error = error
        self._answers: asyncio.Queue[OmniOutput | Exception] = asyncio.Queue()

    async def push(self, payload: Mapping[str, Any], final: bool = False) -> None:
        self.heard.append(payload["audio"])
        if self._error is not None:
            self._answers.put_nowait(self._error)
            await asyncio.sleep(60)
        number = len(self.heard)
        self._answers.put_nowait(OmniOutput("r", 1, "audio", np.full((1920, 1), number / 100, np.float32)))
        self._answers.put_nowait(OmniOutput("r", 0, "text", f" {number}", {"token": np.array([100 + number])}))

    async def outputs(self) -> AsyncIterator[OmniOutput]:
        yield OmniOutput("r", 0, "text", "", {"prompt_frames": np.array([12])})
        while True:
            answer = await self._answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer

    async def close(self) -> None:
        self.is_closed = True


class Replica:
    group = 0

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[Request] = []
        self._error = error

    def open(self, inputs: Mapping[str, Any], **options: Any) -> Request:
        self.requests.append(Request(inputs, self._error))
        return self.requests[-1]

    def generate(self, inputs: Any, **options: Any) -> AsyncIterator[OmniOutput]:
        raise AssertionError("a session is one fed request")


def stream(replica: Replica, **config: Any) -> PersonaPlexStream:
    return PersonaPlexStream(replica, SessionConfig(**config), FENCE, frozenset({PAD}))


async def step(found: PersonaPlexStream, unit: AudioIn = UNIT) -> list[Output]:
    return [output async for output in found.step(unit)]


async def test_each_unit_is_answered_by_its_own_frame() -> None:
    replica = Replica()
    found = stream(replica, instructions="be kind", voice="NATF2")

    answers = [await step(found) for _ in range(3)]
    await found.close()
    await found.close()

    assert replica.requests[0].opening == {"instructions": "be kind", "voice": "NATF2"}
    for number, answer in enumerate(answers, 1):
        text, audio = answer
        assert isinstance(text, TextOut)
        assert isinstance(audio, AudioOut)
        assert text.text == f" {number}"
        assert audio.pcm[0] == np.float32(number / 100)
    assert replica.requests[0].is_closed


async def test_a_turns_end_counts_before_the_session_has_heard_of_it() -> None:
    """A unit that was cut before the end was known carries the old turn; what it gives belongs to the next one all the same."""
    found = stream(Replica())
    found._gate = gate = TurnGate(frozenset({101, 102}))
    gate.speaks, gate._pause = True, PAUSE_FRAMES - 1

    end = (await step(found))[-1]
    after = (await step(found))[-1]
    await found.close()

    assert end == TurnEnd(FENCE)
    assert after.fence == replace(FENCE, turn=1)


async def test_a_cancelled_turn_is_not_heard_to_its_end() -> None:
    found = stream(Replica())
    await step(found)

    await found.cancel(replace(FENCE, epoch=1))
    after = await step(found)
    await found.close()

    assert after == [Listen(replace(FENCE, epoch=1))]


async def test_voice_and_instructions_change_until_there_is_audio() -> None:
    replica = Replica()
    found = stream(replica, instructions="a", voice="NATF2")
    old, new = SessionConfig(instructions="a", voice="NATF2"), SessionConfig(instructions="b", voice="NATM1")

    found.validate_update(old, new)
    await found.configure(old)
    await found.configure(new)
    await step(found)

    assert [request.opening["instructions"] for request in replica.requests] == ["a", "b"]
    assert replica.requests[0].is_closed
    with pytest.raises(DuplexError) as refused:
        found.validate_update(new, old)
    assert refused.value.code == "voice_update_after_audio_unsupported"
    with pytest.raises(DuplexError) as refused:
        found.validate_update(new, replace(new, instructions="c"))
    assert refused.value.code == "instructions_update_after_audio_unsupported"
    found.validate_update(new, replace(new, turn_detection=None))
    await found.close()


async def test_the_reason_for_which_a_request_ended_is_told() -> None:
    found = stream(Replica(StageDeadError("its process is gone")))

    with pytest.raises(StageDeadError, match="its process is gone"):
        await step(found)
    await found.close()


async def test_a_session_that_ends_while_a_dead_request_is_fed_ends() -> None:
    """The end must not be taken for one more failed frame: whoever waits for it would wait for ever."""
    found = stream(Replica(StageDeadError("its process is gone")))
    with pytest.raises(StageDeadError):
        await step(found)

    stepping = asyncio.ensure_future(step(found))
    await asyncio.sleep(0)
    stepping.cancel()
    await asyncio.wait({stepping}, timeout=5)

    assert stepping.cancelled()
    await found.close()


@pytest.fixture
def model(folder: Path) -> PersonaPlex:
    from omni_core.deploy.resolve import resolve_deployment

    return PersonaPlex(resolve_deployment(folder, platform="cpu"))


def test_it_says_what_it_can_do(model: PersonaPlex) -> None:
    """The table of section 1.2: 80 ms, 24 kHz, no resume, no barge-in, no truncation, no tools."""
    found = model.capabilities(8)

    assert (found.unit_ms, found.input_rate, found.output_rate, found.turn_policy) == (80, 24_000, 24_000, "model")
    assert not (found.session_resume)
    assert not (found.barge_in)
    assert not (found.truncate)
    assert not (found.tools)
    assert not (found.text_input)
    assert found.voices == ("NATF2", "NATM1")
    assert found.sessions_per_replica == 8


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"voice": "nobody"}, "unknown_voice"),
        ({"instructions": "x" * 20_001}, "instructions_too_long"),
        ({"extra": {"gain": 1}}, "unknown_parameter"),
    ],
    ids=["voice", "instructions", "extra"],
)
def test_a_configuration_that_it_does_not_know_is_refused(model: PersonaPlex, config: dict[str, Any], code: str) -> None:
    with pytest.raises(DuplexError) as refused:
        model.validate(SessionConfig(**config))

    assert refused.value.code == code
    model.validate(SessionConfig(voice="NATM1", instructions="be kind"))
