"""What each checkpoint of the family accepts (AP-02)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import RequestError
from omni_core.model_info import ModelInfo
from omni_core.speech import SpeechAdapter, SpeechPrompt
from omni_core.target import load_target
from omni_models_moss.pipeline import PIPELINES


@pytest.fixture
def adapter(tiny: Callable[..., Path]) -> Callable[..., SpeechAdapter]:
    def make(name: str, variant: str | None = None) -> SpeechAdapter:
        folder = tiny(name, variant)
        speech = next(pipeline.speech for pipeline in PIPELINES if pipeline.model_type == name)
        return load_target(speech or "")(ModelInfo(str(folder), folder, json.loads((folder / "config.json").read_text())))

    return make


@pytest.mark.parametrize(
    ("name", "rate", "channels", "hop"),
    [
        ("moss_tts_local", 48000, 2, 3840),
        ("moss_tts_nano", 48000, 2, 3840),
        ("moss_tts_delay", 24000, 1, 1920),
        ("moss_tts_realtime", 24000, 1, 1920),
    ],
)
def test_traits_say_what_the_server_must_know(
    name: str, rate: int, channels: int, hop: int, adapter: Callable[..., SpeechAdapter]
) -> None:
    traits = adapter(name).traits

    assert (traits.sample_rate, traits.channels, traits.samples_per_frame) == (rate, channels, hop)
    assert traits.clones
    assert traits.reference_channels == channels


@pytest.mark.parametrize("variant", ["voice_generator", "sound_effect"])
def test_models_that_take_no_recording_say_so(variant: str, adapter: Callable[..., SpeechAdapter]) -> None:
    assert not adapter("moss_tts_delay", variant).traits.clones


@pytest.mark.parametrize(
    ("variant", "values", "param"),
    [
        ("ttsd", {}, "ref_audio"),
        ("ttsd", {"ref_audio": 1, "ref_text": "words", "ref_audio_2": 2}, "ref_audio_2"),
        ("tts", {"ref_audio": 1, "ref_audio_2": 2}, "ref_audio_2"),
        ("voice_generator", {}, "instructions"),
        ("voice_generator", {"instructions": "  "}, "instructions"),
        ("voice_generator", {"instructions": "warm", "ref_audio": 1}, "ref_audio"),
        ("sound_effect", {}, "ambient_sound"),
        ("sound_effect", {"ambient_sound": "rain", "language": "Thai"}, "language"),
    ],
)
def test_what_a_model_needs_and_does_not_know_is_named(
    variant: str, values: dict[str, Any], param: str, adapter: Callable[..., SpeechAdapter], recording: Callable[..., Any]
) -> None:
    """AP-02."""
    given = {name: recording(value) if isinstance(value, int) else value for name, value in values.items()}

    with pytest.raises(RequestError) as caught:
        adapter("moss_tts_delay", variant).prepare(SpeechPrompt("Hello", **given))

    assert caught.value.param == param


def test_each_model_gets_what_it_needs(adapter: Callable[..., SpeechAdapter], recording: Callable[..., Any]) -> None:
    dialogue = SpeechPrompt("[S1] Hello", ref_audio=recording(1), ref_audio_2=recording(2))
    spoken = adapter("moss_tts_delay", "ttsd").prepare(dialogue).inputs
    voice = adapter("moss_tts_delay", "voice_generator").prepare(SpeechPrompt("Hello", instructions="warm")).inputs
    sound = SpeechPrompt(" ", ambient_sound="rain", duration_seconds=2.4, max_new_tokens=9)
    heard = adapter("moss_tts_delay", "sound_effect").prepare(sound)

    assert (spoken["ref_audio"].shape, spoken["ref_audio_2_rate"]) == ((24000,), 24000)
    assert voice["instructions"] == "warm"
    assert (heard.inputs["ambient_sound"], heard.inputs["tokens"]) == ("rain", 30)
    assert heard.sampling == {0: {"max_tokens": 9}}


@pytest.mark.parametrize("name", ["moss_tts_nano", "moss_tts_realtime"])
def test_fields_of_a_form_that_a_model_has_not_learned_are_refused(name: str, adapter: Callable[..., SpeechAdapter]) -> None:
    with pytest.raises(RequestError, match="'instructions' has no effect"):
        adapter(name).prepare(SpeechPrompt("Hello", instructions="Slowly"))


def test_realtime_imitates_and_does_not_continue(adapter: Callable[..., SpeechAdapter], recording: Callable[..., Any]) -> None:
    inputs = adapter("moss_tts_realtime").prepare(SpeechPrompt("Hello", ref_audio=recording())).inputs
    assert inputs["ref_audio"].shape == (24000,)

    with pytest.raises(RequestError, match="'ref_text' has no effect"):
        adapter("moss_tts_realtime").prepare(SpeechPrompt("Hello", ref_audio=recording(), ref_text="words"))
