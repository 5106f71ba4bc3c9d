"""What each checkpoint of the family accepts (AP-02)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core import client
from omni_core.errors import ConfigError, RequestError
from omni_core.model_info import ModelInfo
from omni_core.speech import SpeechAdapter, SpeechPrompt
from omni_core.target import load_target
from omni_models_moss.codec.location import NAME
from omni_models_moss.local.speech import NanoSpeech
from omni_models_moss.pipeline import MOSS_TTS_NANO, PIPELINES


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


@pytest.mark.parametrize("bad", ["ref_audio", "ref_audio_2"])
def test_a_recording_that_cannot_be_used_is_called_by_its_own_name(
    bad: str, adapter: Callable[..., SpeechAdapter], recording: Callable[..., Any]
) -> None:
    recordings = {name: recording(seconds=0.2 if name == bad else 1.0) for name in ("ref_audio", "ref_audio_2")}

    with pytest.raises(RequestError, match=r"0\.2 s long") as caught:
        adapter("moss_tts_delay", "ttsd").prepare(SpeechPrompt("[S1] Hello", **recordings))

    assert caught.value.param == bad


def test_the_words_of_a_recording_have_the_limit_of_a_text(
    adapter: Callable[..., SpeechAdapter], recording: Callable[..., Any]
) -> None:
    prompt = SpeechPrompt("Hello", ref_audio=recording(), ref_text="x" * 8001)

    with pytest.raises(RequestError, match="'ref_text' has 8001 characters, but at most 8000") as caught:
        adapter("moss_tts_delay", "tts").prepare(prompt)

    assert caught.value.param == "ref_text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"number_channels": "two"}', "number_channels must be of type int"),
    ],
    ids=["damaged", "a list", "no number"],
)
def test_a_codec_whose_sizes_cannot_be_read_is_an_error_that_names_the_file(
    text: str, message: str, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny("moss_tts_nano"), tmp_path / "model")
    config = folder / "audio_tokenizer" / "config.json"
    config.write_text(text)

    with pytest.raises(ConfigError, match=message) as caught:
        _ = NanoSpeech(ModelInfo(str(folder), folder, {})).traits

    assert caught.value.where == str(config)


@pytest.fixture
def other_codec(tmp_path: Path) -> Path:
    """The folder of a codec that is none of a tiny checkpoint's."""
    folder = tmp_path / "codec"
    folder.mkdir()
    (folder / "config.json").write_text('{"number_channels": 2, "downsample_rate": 960, "sampling_rate": 12000}')
    return folder


@pytest.fixture
def deployed(tiny: Callable[..., Path], stage_of: Callable[..., Any]) -> Callable[..., SpeechAdapter]:
    """Return the adapter of a deployment whose stages have these `hf_overrides`."""

    def make(talker: dict[str, Any], codec: dict[str, Any], folder: Path | None = None, **values: Any) -> SpeechAdapter:
        folder = folder or tiny("moss_tts_nano")
        given = ({"engine_args": {"hf_overrides": talker}}, {"engine_args": {"hf_overrides": codec}, **values})
        stages = tuple(stage_of(folder, index, pipeline=MOSS_TTS_NANO, **each) for index, each in enumerate(given))
        return NanoSpeech(ModelInfo(str(folder), folder, {}), {"stages": stages})

    return make


def _sizes(adapter: SpeechAdapter) -> tuple[int, int, int]:
    return adapter.traits.sample_rate, adapter.traits.channels, adapter.traits.samples_per_frame


def test_sizes_are_those_of_the_codec_that_the_stage_names(deployed: Callable[..., SpeechAdapter], other_codec: Path) -> None:
    """An override beats the folder inside the checkpoint, here as in the stage's process (`find_codec`)."""
    named = {NAME: str(other_codec)}

    assert _sizes(deployed(named, named)) == (12000, 2, 960)
    assert _sizes(deployed({}, {})) == (48000, 2, 3840)


def test_the_server_tells_the_adapter_what_the_deployment_names(
    resolve: Callable[..., Any], other_codec: Path, tmp_path: Path
) -> None:
    named = f"hf_overrides: {{{NAME}: {other_codec}}}"
    deploy = tmp_path / "mine.yaml"
    deploy.write_text(f"base_config: moss_tts_delay.yaml\nstages: [{{stage_id: 0, {named}}}, {{stage_id: 1, {named}}}]\n")

    adapter = client._speech_adapter(resolve(deploy, platform="cpu", model_type="moss_tts_delay"))

    assert adapter is not None
    assert _sizes(adapter) == (12000, 2, 960)


def test_sizes_are_those_of_the_codec_that_the_stage_has_as_its_model(
    deployed: Callable[..., SpeechAdapter], other_codec: Path
) -> None:
    config = json.loads((other_codec / "config.json").read_text())
    (other_codec / "config.json").write_text(json.dumps({**config, "quantizer_kwargs": {}}))

    assert _sizes(deployed({}, {}, model=str(other_codec))) == (12000, 2, 960)


def test_codec_that_a_stage_names_and_that_is_not_there_is_an_error(
    deployed: Callable[..., SpeechAdapter], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        _ = deployed({}, {NAME: str(tmp_path / "nowhere")}).traits


def test_only_small_files_of_a_repository_are_fetched_for_the_sizes_and_none_of_the_published_one(
    deployed: Callable[..., SpeechAdapter], other_codec: Path, tiny: Callable[..., Path], tmp_path: Path, monkeypatch: Any
) -> None:
    asked = []

    def fetch(name: str, revision: object, weights: bool) -> Path:
        asked.append((name, weights))
        return other_codec

    monkeypatch.setattr("omni_core.model_info._fetch", fetch)
    bare = shutil.copytree(tiny("moss_tts_nano"), tmp_path / "bare", ignore=shutil.ignore_patterns("audio_tokenizer"))

    assert _sizes(deployed({}, {NAME: "org/codec"})) == (12000, 2, 960)
    assert _sizes(deployed({}, {}, folder=bare)) == (48000, 2, 3840)
    assert asked == [("org/codec", False)]


def test_values_that_the_talkers_stage_replaces_hold_for_requests_too(deployed: Callable[..., SpeechAdapter]) -> None:
    adapter: Any = deployed({"n_vq": 7}, {})

    assert adapter.checkpoint.num_codes == 7
