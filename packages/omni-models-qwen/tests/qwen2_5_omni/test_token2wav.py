"""The decoder of Qwen2.5-Omni: the reference's audio from the reference's codes and noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage

torch = pytest.importorskip("torch", reason="the decoder is torch's")
pytest.importorskip("transformers", reason="the decoder is transformers'")

pytestmark = pytest.mark.engine

NOISE_SEED = 1234
"""The reference drew each case's noise from a generator with this seed."""


@pytest.fixture(scope="module")
def decoder_of(omni_stage: Callable[..., ResolvedStage]) -> Callable[[Path], Any]:
    from omni_models_qwen.qwen2_5_omni.token2wav import Qwen2_5OmniToken2Wav

    torch.set_num_threads(1)
    made: dict[Path, Any] = {}

    def decoder(folder: Path) -> Any:
        if folder not in made:
            made[folder] = Qwen2_5OmniToken2Wav.load(omni_stage(folder, 2))
        return made[folder]

    return decoder


def chunk(decoder: Any, payload: dict[str, Any], **sampling: Any) -> LightChunk:
    return LightChunk("r", decoder.begin("r", sampling), payload, final=True)


def payload_of(case: Any) -> dict[str, Any]:
    return {"codes": case.array("codes")[:, None], "voice": case.request["speaker"]}


def test_audio_is_the_references(case: Any, decoder_of: Any) -> None:
    decoder = decoder_of(case.folder)

    (found,) = decoder.step([chunk(decoder, {**payload_of(case), "noise": case.array("dit_noise")})])

    wanted = case.array("wav")
    assert found["audio"].shape == (len(wanted), 1)
    assert found["audio"].dtype == np.float32
    assert np.abs(found["audio"][:, 0] - wanted).max() < 2e-3


def test_the_seed_of_a_request_is_that_of_its_noise(omni_folder: Path, cases_of: Any, decoder_of: Any) -> None:
    decoder = decoder_of(omni_folder)
    case = cases_of(omni_folder)[0]
    chunks = [
        chunk(decoder, payload_of(case), **own) for own in ({"seed": NOISE_SEED}, {"seed": 5}, {}, {}, {"seed": NOISE_SEED})
    ]

    first, other, chance, again, last = (found["audio"] for found in decoder.step(chunks))

    assert np.abs(first[:, 0] - case.array("wav")).max() < 2e-3
    assert np.array_equal(first, last)
    for one, two in ((first, other), (first, chance), (chance, again)):
        assert np.abs(one - two).max() > 2e-3


def test_voices_are_matched_without_case_and_change_the_sound(omni_folder: Path, cases_of: Any, decoder_of: Any) -> None:
    decoder = decoder_of(omni_folder)
    payload = payload_of(cases_of(omni_folder)[0])
    voices = ("chelsie", "CHELSIE", "Ethan", None)
    chunks = [chunk(decoder, {**payload, "voice": voice}, seed=1) for voice in voices]

    low, high, other, unnamed = (found["audio"] for found in decoder.step(chunks))

    assert np.array_equal(low, high)
    assert np.array_equal(low, unnamed)
    assert np.abs(low - other).max() > 2e-3


def test_no_codes_are_no_audio(omni_folder: Path, decoder_of: Any) -> None:
    decoder = decoder_of(omni_folder)

    (found,) = decoder.step([chunk(decoder, {"codes": np.zeros((0, 1), np.int32), "voice": "Ethan"})])

    assert found["audio"].shape == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voice": "nobody"}, "there is no voice 'nobody'"),
        ({"codes": np.array([[8193]])}, "the codebooks have 8193 rows"),
        ({"codes": np.array([[-1]])}, "holds ids from -1"),
        ({"codes": np.array([[1.5]])}, "must be whole numbers"),
        ({"noise": np.zeros((3, 80))}, "noise has the shape"),
        ({"codes": np.zeros((2049, 1), np.int32)}, "2049 codes are more than the 2048"),
    ],
)
def test_what_cannot_be_decoded_is_refused(omni_folder: Path, decoder_of: Any, change: dict[str, Any], message: str) -> None:
    decoder = decoder_of(omni_folder)

    with pytest.raises(RequestError, match=message):
        decoder.step([chunk(decoder, {"codes": np.zeros((4, 1), np.int32), "voice": "Ethan", **change})])


def test_weights_are_read_again(omni_folder: Path, omni_stage: Any, cases_of: Any, decoder_of: Any) -> None:
    decoder = decoder_of(omni_folder)
    case = cases_of(omni_folder)[0]
    bias = decoder.model.code2wav_bigvgan_model.conv_pre.bias
    bias.data.add_(1)

    decoder.reload(omni_stage(omni_folder, 2))
    decoder.sleep()
    decoder.wake()

    (found,) = decoder.step([chunk(decoder, {**payload_of(case), "noise": case.array("dit_noise")})])
    assert np.abs(found["audio"][:, 0] - case.array("wav")).max() < 2e-3


def test_a_folder_without_the_decoder_is_refused(omni_stage: Any, omni_folder: Path, tmp_path: Path) -> None:
    from omni_models_qwen.qwen2_5_omni.token2wav import Qwen2_5OmniToken2Wav

    (tmp_path / "config.json").write_text((omni_folder / "config.json").read_text())

    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        Qwen2_5OmniToken2Wav.load(omni_stage(tmp_path, 2))
