"""Which of the checkpoints of the delay pattern load a codec for recordings, and what the others do without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError
from omni_core.stage import ResolvedStage
from omni_models_moss.pipeline import MOSS_TTS_DELAY

pytest.importorskip("torch")
pytestmark = pytest.mark.engine

SPOKEN: dict[str, dict[str, Any]] = {
    "voice_generator": {"text": "Hello", "instructions": "warm"},
    "sound_effect": {"text": "", "ambient_sound": "rain"},
}


@pytest.fixture
def stage(stage_of: Callable[..., ResolvedStage], tiny: Callable[..., Path]) -> Callable[..., ResolvedStage]:
    """Return a stage of a tiny checkpoint of the delay pattern."""

    def make(variant: str, stage_id: int = 0, *, folder: Path | None = None, **values: Any) -> ResolvedStage:
        return stage_of(folder or tiny("moss_tts_delay", variant), stage_id, pipeline=MOSS_TTS_DELAY, **values)

    return make


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the encoders that are loaded."""
    from omni_models_moss.codec.encoder import CodecEncoder

    folders: list[Path] = []
    load = CodecEncoder.load

    def noted(folder: Path, **values: Any) -> CodecEncoder:
        folders.append(folder)
        return load(folder, **values)

    monkeypatch.setattr(CodecEncoder, "load", noted)
    return folders


@pytest.mark.parametrize("variant", SPOKEN)
def test_a_model_that_takes_no_recordings_loads_no_encoder(
    variant: str, stage: Callable[..., ResolvedStage], loaded: list[Path]
) -> None:
    """The checkpoint has one: its tensors are known, and its decoder takes what belongs to it."""
    from omni_core.modelkit.weights import TensorReader
    from omni_models_moss.code2wav import MossTTSCodecDecoder
    from omni_models_moss.delay.input import DelayInput

    processor = DelayInput(stage(variant))
    made = processor(SPOKEN[variant], {})
    codec = MossTTSCodecDecoder.load(stage(variant, 1))

    assert TensorReader.of_folder(Path(stage(variant).model) / "audio_tokenizer", "encoder.").names
    assert processor.recordings.encoder is None
    assert loaded == []
    assert len(made.prompt_token_ids) == len(made.model_inputs["codes"]) > 0
    assert codec.sample_rate == 24000


@pytest.mark.parametrize("variant", ["tts", "ttsd"])
def test_a_model_that_takes_recordings_loads_the_encoder_at_its_start(
    variant: str, stage: Callable[..., ResolvedStage], loaded: list[Path]
) -> None:
    from omni_models_moss.delay.input import DelayInput

    processor = DelayInput(stage(variant))

    assert processor.recordings.encoder is not None
    assert loaded == [Path(stage(variant).model) / "audio_tokenizer"]


def test_a_recording_that_comes_all_the_same_is_refused(stage: Callable[..., ResolvedStage]) -> None:
    from omni_models_moss.delay.input import DelayInput

    payload = {**SPOKEN["sound_effect"], "ref_audio": np.zeros(24000, np.float32), "ref_audio_rate": 24000}

    with pytest.raises(RequestError, match="this checkpoint takes no recordings") as caught:
        DelayInput(stage("sound_effect"))(payload, {})

    assert caught.value.param == "ref_audio"


def test_a_codec_that_is_damaged_is_still_an_error_where_it_decodes(
    stage: Callable[..., ResolvedStage], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    from omni_models_moss.code2wav import MossTTSCodecDecoder
    from omni_models_moss.delay.input import DelayInput

    folder = shutil.copytree(tiny("moss_tts_delay", "voice_generator"), tmp_path / "model")
    (folder / "audio_tokenizer" / "model.safetensors").write_bytes(b"no tensors")

    DelayInput(stage("voice_generator", folder=folder))
    with pytest.raises(ConfigError, match="cut short or damaged"):
        MossTTSCodecDecoder.load(stage("voice_generator", 1, folder=folder))


def test_values_that_the_stage_replaces_hold_for_prompts_too(
    stage: Callable[..., ResolvedStage], tiny: Callable[..., Path]
) -> None:
    """As for the engine: `hf_overrides` is about the checkpoint's config.json."""
    from omni_models_moss.delay.input import DelayInput

    published = json.loads((tiny("moss_tts_delay", "voice_generator") / "config.json").read_text())["n_vq"]
    processor = DelayInput(stage("voice_generator", engine_args={"hf_overrides": {"n_vq": published - 1}}))

    assert processor(SPOKEN["voice_generator"], {}).model_inputs["codes"].shape[1] == published - 1
