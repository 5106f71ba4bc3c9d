"""Turn detection with the real network and real speech (B28): what starts a turn, what ends it, and what must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from omni_core.errors import DependencyError
from omni_duplex.audio.formats import AudioFormat, Decoder, Encoder
from omni_duplex.model import Capabilities, Samples, SessionConfig, TurnDetection
from omni_duplex.testing.speech import missing_speech, silence, speak
from omni_duplex.vad.ear import silero_ears

pytest.importorskip("onnxruntime", reason="the extra `vad` of omni-duplex brings it")
pytestmark = [pytest.mark.engine, pytest.mark.skipif(missing_speech() is not None, reason=str(missing_speech()))]

RATE = 24_000
FRAME_MS = 32
LONG = "Good morning, can you hear me now? I would like a cup of tea."

Hear = Callable[..., list[tuple[bool, int]]]


@pytest.fixture(scope="module")
def hear() -> Hear:
    """Return what feeds audio to an ear and lists where speech began (True) and ended, in ms."""
    try:
        ears = silero_ears(None)
    except DependencyError as error:
        pytest.skip(str(error))

    def listen(
        pcm: Samples, detection: TurnDetection | None = None, chunks: Sequence[int] = (480,), rate: int = RATE
    ) -> list[tuple[bool, int]]:
        ear = ears(Capabilities(input_rate=rate), SessionConfig(turn_detection=detection or TurnDetection()))
        found, at, number = [], 0, 0
        while at < len(pcm):
            size = chunks[number % len(chunks)]
            found += [(type(event).__name__ == "SpeechStarted", event.at_ms) for event in ear.push(pcm[at : at + size])]
            at, number = at + size, number + 1
        return found

    return listen


def between_silence(speech: Samples, rate: int = RATE) -> Samples:
    return np.concatenate([silence(1, rate), speech, silence(1, rate)])


def holds(found: list[tuple[bool, int]], *spoken: tuple[float, float]) -> None:
    """Hold turns against the truth: beginnings within two frames, ends no more than four late (the network lets them ring)."""
    assert [began for began, _ in found] == [True, False] * len(spoken), found
    for index, (start, end) in enumerate(spoken):
        assert abs(found[2 * index][1] - start) <= 2 * FRAME_MS, (found, spoken)
        assert -2 * FRAME_MS <= found[2 * index + 1][1] - end <= 4 * FRAME_MS, (found, spoken)


def ms(pcm: Samples, rate: int = RATE) -> float:
    return len(pcm) * 1000 / rate


@pytest.mark.parametrize("level", [0, -6, -12, -20, -26, -30, -36])
def test_speech_is_found_where_it_is_however_quiet(hear: Hear, level: int) -> None:
    speech = speak(LONG, level_db=level)

    holds(hear(between_silence(speech)), (1000, 1000 + ms(speech)))


@pytest.mark.parametrize("level", [0, -12, -26])
def test_speech_is_found_in_noise(hear: Hear, level: int) -> None:
    """Noise of 25 dB below the speech."""
    speech = speak(LONG, level_db=level)
    noise = np.random.default_rng(0).standard_normal(len(speech) + 2 * RATE) * 10 ** ((level - 25) / 20)

    found = hear((between_silence(speech) + noise).astype(np.float32))

    assert [began for began, _ in found] == [True, False]
    assert abs(found[0][1] - 1000) <= 2 * FRAME_MS
    assert abs(found[1][1] - 1000 - ms(speech)) <= 6 * FRAME_MS


@pytest.mark.parametrize("pause", [200, 300, 400, 600, 700, 800, 900])
def test_a_pause_ends_the_turn_from_the_silence_that_was_asked_for_on(hear: Hear, pause: int) -> None:
    first, second = speak("Good morning my friend"), speak("I would like a cup of tea")
    begins = 1000 + ms(first) + pause
    turns = [(1000.0, 1000 + ms(first)), (begins, begins + ms(second))]

    found = hear(
        between_silence(np.concatenate([first, silence(pause / 1000), second])), TurnDetection(silence_duration_ms=500)
    )

    holds(found, *(turns if pause > 500 else [(turns[0][0], turns[1][1])]))


@pytest.mark.parametrize("silence_ms", [300, 500, 900])
def test_the_silence_that_is_asked_for_decides(hear: Hear, silence_ms: int) -> None:
    words = np.concatenate([speak("Good morning my friend"), silence(0.7), speak("I would like a cup of tea"), silence(1)])

    found = hear(between_silence(words), TurnDetection(silence_duration_ms=silence_ms))

    assert len(found) == (4 if silence_ms < 700 else 2)


def test_somebody_who_speaks_already_is_heard_at_once(hear: Hear) -> None:
    speech = speak(LONG)

    found = hear(np.concatenate([speech[RATE // 2 :], silence(1)]))

    holds(found, (0, ms(speech) - 500))


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
@pytest.mark.parametrize("wire", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_speech_is_found_in_every_format_and_for_every_model(hear: Hear, wire: str, rate: int) -> None:
    """PCM at each rate to a model at 24 kHz; telephone audio to a model at each rate."""
    form = AudioFormat(wire, rate if wire == "audio/pcm" else 8_000)  # type: ignore[arg-type]
    model_rate = RATE if wire == "audio/pcm" else rate
    speech = speak(LONG)
    data = Encoder(form, RATE).push(between_silence(speech), last=True)
    decoder = Decoder(form, model_rate)

    pcm = np.concatenate([decoder.push_bytes(data[at : at + 777]) for at in range(0, len(data), 777)])

    holds(hear(pcm, rate=model_rate), (1000, 1000 + ms(speech)))


@pytest.mark.parametrize("chunks", [(1, 7, 4801), (160,), (24_000,), (10**9,)], ids=["odd", "short", "second", "whole"])
def test_how_audio_is_cut_changes_nothing(hear: Hear, chunks: tuple[int, ...]) -> None:
    pcm = between_silence(speak("Good morning my friend"))

    assert hear(pcm, chunks=chunks) == hear(pcm)


TIME = np.arange(10 * RATE) / RATE
STEADY: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "silence": lambda random: np.zeros(len(TIME)),
    "an offset": lambda random: np.full(len(TIME), 0.5),
    "faint noise": lambda random: random.standard_normal(len(TIME)) * 0.001,
    "noise": lambda random: random.standard_normal(len(TIME)) * 0.1,
    "loud noise": lambda random: random.standard_normal(len(TIME)) * 0.4,
    "deep noise": lambda random: np.clip(np.cumsum(random.standard_normal(len(TIME))) * 0.003, -0.5, 0.5),
    "hum": lambda random: 0.5 * np.sin(2 * np.pi * 50 * TIME),
    "a tone": lambda random: 0.5 * np.sin(2 * np.pi * 440 * TIME),
    "clicks": lambda random: (np.arange(len(TIME)) % (RATE // 3) < 24) * 0.8,
}


@pytest.mark.parametrize("sound", STEADY)
def test_ten_seconds_without_speech_start_no_turn(hear: Hear, sound: str) -> None:
    """B28: steady noise must not interrupt the model."""
    pcm = np.clip(STEADY[sound](np.random.default_rng(7)), -1, 1).astype(np.float32)

    assert hear(pcm) == []


def test_sessions_do_not_hear_each_other(hear: Hear) -> None:
    """The network is shared, what it remembers is not."""
    one, other = between_silence(speak("Good morning my friend")), between_silence(speak(LONG, level_db=-26))
    alone = [hear(one), hear(other)]
    ears = [silero_ears(None)(Capabilities(), SessionConfig()) for _ in range(2)]
    found: list[list[tuple[bool, int]]] = [[], []]

    for at in range(0, len(other), 480):
        for index, pcm in enumerate((one, other)):
            found[index] += [
                (type(event).__name__ == "SpeechStarted", event.at_ms) for event in ears[index].push(pcm[at : at + 480])
            ]

    assert found == alone


def test_a_threshold_of_one_hears_nothing(hear: Hear) -> None:
    listen = partial(hear, between_silence(speak(LONG, level_db=-30)))

    assert listen(TurnDetection(threshold=1.0)) == []
    assert listen(TurnDetection(threshold=0.2)) != []
