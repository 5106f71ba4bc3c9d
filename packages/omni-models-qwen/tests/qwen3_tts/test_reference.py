from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError
from omni_models_qwen.qwen3_tts.reference import ReferenceEncoder
from omni_models_qwen.qwen3_tts.tiny import build_tiny

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


@pytest.fixture(scope="session")
def encoder_of() -> Callable[[Path], ReferenceEncoder]:
    return cache(ReferenceEncoder.load)


def tone(seconds: float, rate: int = 24000, hertz: float = 220.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    time = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * hertz * time) + 0.05 * np.sin(2 * np.pi * 7.3 * hertz * time)).astype(np.float32)


def test_a_recording_becomes_the_references_codes_and_embedding(
    case: Any, encoder_of: Callable[[Path], ReferenceEncoder]
) -> None:
    recording = case.prompt.ref_audio
    if recording is None:
        pytest.skip("the case has no recording")
    codes, embedding = case.array("ref_codes"), case.array("ref_spk_embedding")

    voice = encoder_of(case.folder).encode(recording.samples, recording.sample_rate, with_codes=codes is not None)

    if codes is None:
        assert voice.codes is None
    else:
        assert voice.codes is not None
        assert voice.codes.dtype == np.int64
        np.testing.assert_array_equal(voice.codes, codes)
    assert voice.embedding.dtype == np.float32
    np.testing.assert_allclose(voice.embedding, embedding, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("seconds", "frames"), [(1.0, 13), (1.6, 20), (30.0, 375)])
def test_a_frame_is_made_of_each_started_80_milliseconds(
    seconds: float, frames: int, tiny_base: Path, encoder_of: Callable[[Path], ReferenceEncoder]
) -> None:
    voice = encoder_of(tiny_base).encode(tone(seconds), 24000, with_codes=True)

    assert voice.codes is not None
    assert voice.codes.shape == (frames, 16)
    assert 0 <= voice.codes.min() < voice.codes.max() < 2048


def test_the_rate_of_a_recording_hardly_matters(tiny_base: Path, encoder_of: Callable[[Path], ReferenceEncoder]) -> None:
    encoder = encoder_of(tiny_base)
    same = encoder.encode(tone(2), 24000, with_codes=False).embedding
    resampled = encoder.encode(tone(2, 48000), 48000, with_codes=False).embedding
    other = encoder.encode(tone(2, hertz=330), 24000, with_codes=False).embedding

    assert np.abs(resampled - same).max() < 0.1 * np.abs(other - same).max()


def test_all_of_a_long_recording_is_heard(tiny_base: Path, encoder_of: Callable[[Path], ReferenceEncoder]) -> None:
    samples = tone(30)
    other = samples.copy()
    other[:24000] = 0

    first, second = (encoder_of(tiny_base).encode(value, 24000, with_codes=True).codes for value in (samples, other))

    # Windows of ten seconds, as newer transformers have them, would end twenty seconds after the change: there are two layers.
    assert first is not None
    assert second is not None
    assert (first[-50:] != second[-50:]).any()


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (tone(0.9), 24000, "0.90 s long"),
        (tone(30.1), 24000, "30.10 s long"),
        (np.zeros((24000, 2), np.float32), 24000, r"mono floats \[n\], not float32 \[24000, 2\]"),
        (np.zeros(24000, np.int16), 24000, "not int16"),
        (np.full(24000, np.nan, np.float32), 24000, "not finite"),
        (tone(2), 0, "sample rate 0"),
    ],
    ids=["short", "long", "stereo", "integers", "nan", "no rate"],
)
def test_a_recording_that_cannot_be_used_is_refused(
    samples: np.ndarray[Any, Any],
    rate: int,
    message: str,
    tiny_base: Path,
    encoder_of: Callable[[Path], ReferenceEncoder],
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        encoder_of(tiny_base).encode(samples, rate, with_codes=True)

    assert error.value.param == "ref_audio"


def test_a_checkpoint_that_cannot_clone_says_so(tmp_path: Path) -> None:
    build_tiny(tmp_path, "custom_voice", 0)

    with pytest.raises(ConfigError, match="has no speaker encoder"):
        ReferenceEncoder.load(tmp_path)


def test_a_codec_without_its_encoder_is_named(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_base, folder)
    path = folder / "speech_tokenizer" / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"encoder_config"', '"encoder"'), encoding="utf-8")

    with pytest.raises(ConfigError, match="encoder_config") as error:
        ReferenceEncoder.load(folder)

    assert error.value.where == str(path)
