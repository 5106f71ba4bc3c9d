from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.codec_decoder import CodecDecoder

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME = 1920
# The reference's own float32 audio is 2e-5 away from what float64 gives: these random weights amplify rounding.
ROUNDING = 1e-4


def codes_of(case: Any, name: str = "codes") -> Tensor:
    return torch.from_numpy(case.array(name).astype(np.int64))[None]


def one_shot_of(case: Any) -> Tensor:
    """What one decode of the case's codes gives; only for clones it is not the case's audio."""
    found = case.array("wav_oneshot")
    if found is None:
        assert case.array("ref_codes") is None
        found = case.array("wav")
    return torch.from_numpy(found)


def random_codes(frames: int, *, batch: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 2048, (batch, frames, 16), generator=torch.Generator().manual_seed(seed))


def streamed(decoder: CodecDecoder, codes: Tensor, sizes: Sequence[int]) -> Tensor:
    states = [decoder.begin() for _ in codes]
    assert sum(sizes) == codes.shape[1]
    return torch.cat([decoder.decode(piece, states) for piece in codes.split(list(sizes), dim=1)], 1)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


def test_one_decode_is_the_references(case: Any, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder, codes = decoder_of(case.folder), codes_of(case)
    expected = one_shot_of(case)

    audio = decoder.decode(codes, [decoder.begin()])

    assert audio.shape == (1, codes.shape[1] * FRAME, 1)
    assert audio.dtype == torch.float32
    assert worst(audio[0, :, 0], expected) < ROUNDING


def test_chunks_joined_are_the_references_decode(case: Any, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder, codes = decoder_of(case.folder), codes_of(case)
    expected = one_shot_of(case)
    frames = codes.shape[1]

    for size in (1, 4, 7):
        sizes = [size] * (frames // size) + [frames % size] * bool(frames % size)
        assert worst(streamed(decoder, codes, sizes)[0, :, 0], expected) < ROUNDING


def test_clone_continues_its_reference(case: Any, decoder_of: Callable[..., CodecDecoder]) -> None:
    if case.array("ref_codes") is None:
        pytest.skip("the case clones no recording")
    decoder, codes, reference = decoder_of(case.folder), codes_of(case), codes_of(case, "ref_codes")
    expected = torch.from_numpy(case.array("wav"))

    audio = decoder.decode(codes, [decoder.begin()], reference=reference)

    assert worst(audio[0, :, 0], expected) < ROUNDING


@pytest.mark.parametrize(
    "sizes",
    [[100], [1] * 100, [1, 2, 4, 8, 16, 32, 37], [72, 28], [71, 1, 28], [16, 16, 16, 16, 16, 16, 4], [3, 97]],
    ids=lambda sizes: f"{len(sizes)}-chunks",
)
def test_any_split_gives_the_one_shot_audio(
    sizes: list[int], tiny_base: Path, decoder_of: Callable[..., CodecDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, codes = decoder_of(tiny_base, "float64"), random_codes(100)
    with monkeypatch.context() as patch:
        patch.setattr("omni_models_qwen.qwen3_tts.codec_decoder._PIECES", {"cpu": (1000, 1000, 1000)})
        whole = decoder.decode(codes, [decoder.begin()])

    # In float64, so that only a real difference shows.
    assert worst(streamed(decoder, codes, sizes), whole) < 1e-11


@pytest.mark.parametrize("batch", [1, 40, 300])
def test_pieces_of_a_device_join_as_those_of_a_cpu(
    batch: int, tiny_base: Path, decoder_of: Callable[..., CodecDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk is decoded in pieces whose size depends on the device and on the batch; on a GPU they have 16 to 128 frames."""
    decoder, codes = decoder_of(tiny_base, "float64"), random_codes(130, seed=3)
    whole = decoder.decode(codes, [decoder.begin()])
    monkeypatch.setattr("omni_models_qwen.qwen3_tts.codec_decoder._PIECES", {})

    sizes = [piece.shape[1] for piece in decoder._pieces(codes.expand(batch, -1, -1))]
    found = decoder.decode(codes, [decoder.begin()])

    assert sizes == {1: [128, 2], 40: [51, 51, 28], 300: [16] * 8 + [2]}[batch]
    assert worst(found, whole) < 1e-11


def test_any_split_agrees_in_float32_up_to_rounding(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder, codes = decoder_of(tiny_base), random_codes(100)
    whole = decoder.decode(codes, [decoder.begin()])

    assert worst(streamed(decoder, codes, [1, 2, 4, 8, 16, 32, 37]), whole) < 1e-5


@pytest.mark.parametrize("frames", [1, 5, 6, 20, 90])
def test_audio_of_a_reference_is_left_out_exactly(
    frames: int, tiny_base: Path, decoder_of: Callable[..., CodecDecoder]
) -> None:
    decoder, reference, codes = decoder_of(tiny_base, "float64"), random_codes(frames, seed=1), random_codes(12)
    whole = decoder.decode(torch.cat((reference, codes), 1), [decoder.begin()])
    state = decoder.begin()

    first = decoder.decode(codes[:, :5], [state], reference=reference)
    second = decoder.decode(codes[:, 5:], [state])

    assert state.frames == frames + 12
    assert worst(torch.cat((first, second), 1), whole[:, frames * FRAME :]) < 1e-11


def test_requests_at_different_places_share_a_batch(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder = decoder_of(tiny_base, "float64")
    before = [random_codes(frames, seed=frames) for frames in (0, 3, 71, 80)]
    together, alone = ([decoder.begin() for _ in before] for _ in range(2))
    for states in (together, alone):
        for codes, state in zip(before, states, strict=True):
            decoder.decode(codes, [state])

    for step in range(3):
        codes = random_codes(4, batch=4, seed=step)
        batch = decoder.decode(codes, together)
        solo = torch.cat([decoder.decode(row[None], [state]) for row, state in zip(codes, alone, strict=True)])
        assert worst(batch, solo) < 1e-11


def test_audio_depends_on_every_codebook(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder, codes = decoder_of(tiny_base), random_codes(6)
    plain = decoder.decode(codes, [decoder.begin()])

    for level in range(16):
        other = codes.clone()
        other[0, 2, level] = (other[0, 2, level] + 1) % 2048
        changed = (decoder.decode(other, [decoder.begin()]) - plain).abs()
        assert changed[:, : 2 * FRAME].max() == 0
        assert changed[:, 2 * FRAME :].max() > 1e-2


def test_a_failing_step_changes_no_state(
    tiny_base: Path, decoder_of: Callable[..., CodecDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, state = decoder_of(tiny_base), decoder_of(tiny_base).begin()
    decoder.decode(random_codes(3), [state])
    kept = [tensor.clone() for tensor in state.memory]

    def broken(x: Tensor, flow: Any) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(decoder, "_last", broken)
    with pytest.raises(RuntimeError):
        decoder.decode(random_codes(20), [state])

    assert state.frames == 3
    assert all(torch.equal(old, new) for old, new in zip(kept, state.memory, strict=True))


def test_no_frames_make_no_audio(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder = decoder_of(tiny_base)

    assert decoder.decode(random_codes(0), [decoder.begin()]).shape == (1, 0, 1)


def test_a_state_does_not_grow(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    decoder, state = decoder_of(tiny_base), decoder_of(tiny_base).begin()
    before = [(tensor.data_ptr(), tensor.untyped_storage().nbytes()) for tensor in state.memory]

    for step in range(3):
        decoder.decode(random_codes(40, seed=step), [state])

    assert [(tensor.data_ptr(), tensor.untyped_storage().nbytes()) for tensor in state.memory] == before


def test_half_precision_sounds_the_same(tiny_base: Path, decoder_of: Callable[..., CodecDecoder]) -> None:
    codes = random_codes(10)
    exact, coarse = (
        decoder.decode(codes, [decoder.begin()]) for decoder in (decoder_of(tiny_base), decoder_of(tiny_base, "bfloat16"))
    )

    assert coarse.dtype == torch.float32
    assert (coarse - exact).pow(2).mean() < 0.05 * exact.pow(2).mean()


def test_a_codec_of_other_sizes_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    config = (tiny_base / "speech_tokenizer" / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config.replace('"latent_dim": 48', '"latent_dim": 64'), encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to(tiny_base / "speech_tokenizer" / "model.safetensors")

    with pytest.raises(
        ConfigError, match=r"decoder\.pre_conv\.conv\.weight has the shape \[48, 16, 3\] instead of \[64, 16, 3\]"
    ):
        CodecDecoder.load(tmp_path)
