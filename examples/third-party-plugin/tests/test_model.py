"""The parts of the model, each for itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from omni_plugin_echo.handover import chunk, whole
from omni_plugin_echo.speech import EchoSpeech
from omni_plugin_echo.speller import Speller, spell
from omni_plugin_echo.tone import EchoTone

from omni_core.errors import ConfigError, RequestError
from omni_core.model_info import read_model_info
from omni_core.runner import Handoff, LightChunk, StageInput, StageOutput
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedStage


def stage_of(folder: Path) -> ResolvedStage:
    return cast(ResolvedStage, SimpleNamespace(stage_id=0, model=str(folder)))


def play(model: EchoTone, payloads: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    state = model.begin("request", {})
    parts = [model.step([LightChunk("request", state, payload, False)])[0]["audio"] for payload in payloads]
    return np.concatenate(parts)


def run_speller(text: str, sampling: dict[str, Any]) -> list[StageOutput]:
    async def run() -> list[StageOutput]:
        speller = Speller(stage_of(Path()))
        return [output async for output in speller.run(StageInput("request", {"text": text, "voice": "low"}, sampling))]

    return asyncio.run(run())


def test_each_character_is_one_output() -> None:
    outputs = run_speller("héllo", {})

    assert [output.token_ids for output in outputs] == [[number] for number in spell("héllo")]
    assert [output.finished for output in outputs] == [False] * 4 + [True]
    assert outputs[-1].finish_reason == "stop"
    assert outputs[0].handoff == {"voice": "low"}


def test_max_tokens_cuts_the_text() -> None:
    outputs = run_speller("hello", {"max_tokens": 2})

    assert len(outputs) == 2
    assert outputs[-1].finish_reason == "length"


def test_chunks_have_the_asked_size_and_the_first_one_the_voice() -> None:
    handoff = Handoff("request", {"voice": "high"}, {"chunk_characters": 2})

    payloads = [chunk(handoff, output) for output in run_speller("abcde", {})]

    assert [None if payload is None else payload["numbers"].size for payload in payloads] == [None, 2, None, 2, 1]
    assert [payload.get("voice") for payload in payloads if payload is not None] == ["high", None, None]


def test_the_whole_hand_over_equals_the_chunks() -> None:
    numbers = spell("abcde").reshape(-1, 1)

    payload = whole(Handoff("request", {"voice": "low"}, {}), StageOutput(tensors={"numbers": numbers}, finished=True))

    assert payload["numbers"].tolist() == spell("abcde").tolist()
    assert payload["voice"] == "low"


def test_audio_does_not_depend_on_the_chunks(checkpoint: Path) -> None:
    model = EchoTone.load(stage_of(checkpoint))
    numbers = spell("hello world")

    at_once = play(model, [{"numbers": numbers, "voice": "high"}])
    in_parts = play(model, [{"numbers": numbers[:1], "voice": "high"}, {"numbers": numbers[1:7]}, {"numbers": numbers[7:]}, {}])

    assert at_once.shape == (len(numbers) * 640, 1)
    assert at_once.dtype == np.float32
    np.testing.assert_allclose(in_parts, at_once, atol=1e-5)


def test_the_voice_changes_the_pitch(checkpoint: Path) -> None:
    model = EchoTone.load(stage_of(checkpoint))
    crossings = {}

    for voice in ("low", "high"):
        audio = play(model, [{"numbers": spell("aaaaaaaa"), "voice": voice}])[:, 0]
        crossings[voice] = int(np.sum(np.signbit(audio[1:]) != np.signbit(audio[:-1])))

    assert crossings["high"] == pytest.approx(2 * crossings["low"], abs=2)


def test_a_damaged_checkpoint_is_named(checkpoint: Path) -> None:
    (checkpoint / "pitches.npy").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"pitches\.npy"):
        EchoTone.load(stage_of(checkpoint))

    (checkpoint / "config.json").write_text('{"model_type": "echo"}')
    with pytest.raises(ConfigError, match=r"config\.json"):
        EchoSpeech(read_model_info(checkpoint))


def test_a_prompt_becomes_inputs(checkpoint: Path) -> None:
    prepared = EchoSpeech(read_model_info(checkpoint)).prepare(SpeechPrompt("hi", voice="HIGH", max_new_tokens=3))

    assert prepared.inputs == {"text": "hi", "voice": "high"}
    assert prepared.sampling == {0: {"max_tokens": 3}}


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"text": "  "}, "input"),
        ({"text": "x" * 1001}, "input"),
        ({"text": "hi", "voice": "nobody"}, "voice"),
        ({"text": "hi", "language": "English"}, "language"),
    ],
    ids=["empty", "long", "voice", "language"],
)
def test_a_prompt_that_cannot_be_used_is_refused(checkpoint: Path, values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        EchoSpeech(read_model_info(checkpoint)).prepare(SpeechPrompt(**values))

    assert caught.value.param == param
