from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omni_core.errors import ConfigError
from omni_models_moss.codec.decoder import CodecDecoder
from omni_models_moss.codec.memory import Piece
from omni_models_moss.codec.transformer import CausalTransformer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME = 3840
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def decoder(tiny_codec: Path) -> CodecDecoder:
    return CodecDecoder.load(tiny_codec)


@pytest.fixture(scope="module")
def seventy_frames(tiny_codec: Path, straight: Callable[[Path], Any]) -> np.ndarray[Any, Any]:
    """What `random_codes(70)` sounds like, by the straight-line implementation."""
    found: np.ndarray[Any, Any] = straight(tiny_codec).decode(random_codes(70)[0].numpy())
    return found


def random_codes(frames: int, *, batch: int = 1, seed: int = 0, levels: int = 12) -> Tensor:
    return torch.randint(0, 1024, (batch, frames, levels), generator=torch.Generator().manual_seed(seed))


def streamed(decoder: CodecDecoder, codes: Tensor, sizes: list[int]) -> Tensor:
    stream = decoder.begin()
    made = torch.cat([decoder.decode(part, [stream]) for part in codes.split(sizes, dim=1)], dim=1)
    assert stream.frames == codes.shape[1]
    decoder.end(stream)
    return made


def worst(found: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(expected)).max())


def test_golden_codes_become_the_references_audio_whole_and_streamed(decoded: Any) -> None:
    decoder = CodecDecoder.load(decoded.folder / "audio_tokenizer")
    codes = torch.from_numpy(decoded.array("codes"))[None]
    sizes = [4] * (codes.shape[1] // 4)

    assert worst(decoder.decode(codes, [decoder.begin()])[0].T, decoded.whole_wave) < ROUNDING
    reference = decoded.array("wav_streamed_0.32s")
    assert worst(streamed(decoder, codes, sizes)[0].T, decoded.whole_wave if reference is None else reference) < ROUNDING


def test_golden_codes_share_a_batch_with_others(decoded: Any) -> None:
    decoder = CodecDecoder.load(decoded.folder / "audio_tokenizer")
    codes = torch.from_numpy(decoded.array("codes"))[None]
    others = random_codes(codes.shape[1], batch=3, seed=1)

    made = decoder.decode(torch.cat((others[:2], codes, others[2:])), [decoder.begin() for _ in range(4)])

    assert worst(made[2].T, decoded.whole_wave) < ROUNDING


def test_a_continued_recording_is_heard_and_left_out(continued: Any) -> None:
    decoder = CodecDecoder.load(continued.folder / "audio_tokenizer")
    codes, reference = (torch.from_numpy(continued.array(name))[None] for name in ("codes", "ref_codes"))

    made = decoder.decode(codes, [decoder.begin()], reference=reference)

    assert worst(made[0].T, continued.array("wav")) < ROUNDING


@pytest.mark.parametrize("frames", [1, 7, 20])
def test_audio_is_that_of_a_straight_line_implementation(
    frames: int, decoder: CodecDecoder, tiny_codec: Path, straight: Callable[[Path], Any]
) -> None:
    codes = random_codes(frames)

    made = decoder.decode(codes, [decoder.begin()])

    assert worst(made[0], straight(tiny_codec).decode(codes[0].numpy())) < ROUNDING


@pytest.mark.parametrize(
    "sizes",
    [[1] * 70, [1, 15, 15, 15, 15, 9], [16, 54], [70], [17, 16, 37], [3, 67], [33, 33, 4]],
    ids=lambda sizes: f"{len(sizes)}-chunks-from-{sizes[0]}",
)
def test_any_split_gives_the_one_shot_audio(
    sizes: list[int], decoder: CodecDecoder, seventy_frames: np.ndarray[Any, Any]
) -> None:
    # Seventy frames are several windows long at every rate.
    assert worst(streamed(decoder, random_codes(70), sizes)[0], seventy_frames) < ROUNDING


def test_requests_at_different_places_share_a_batch(decoder: CodecDecoder) -> None:
    before = [random_codes(frames, seed=frames) for frames in (0, 3, 16, 41, 80)]
    together, alone = ([decoder.begin() for _ in before] for _ in range(2))
    for streams in (together, alone):
        for codes, stream in zip(before, streams, strict=True):
            decoder.decode(codes, [stream])

    for step in range(4):
        codes = random_codes(15, batch=5, seed=step)
        order = [4, 1, 0, 3, 2] if step % 2 else [0, 1, 2, 3, 4]
        batch = decoder.decode(codes[order], [together[row] for row in order])
        solo = torch.cat([decoder.decode(codes[row : row + 1], [alone[row]]) for row in order])
        assert worst(batch, solo) < ROUNDING
    for stream in (*together, *alone):
        decoder.end(stream)


def test_a_slot_that_was_used_before_is_as_good_as_new(tiny_codec: Path) -> None:
    decoder, codes = CodecDecoder.load(tiny_codec), random_codes(16, seed=1)
    first = decoder.begin()
    fresh = decoder.decode(codes, [first])
    for step in range(3):
        decoder.decode(random_codes(15, seed=step), [first])
    decoder.end(first)

    second = decoder.begin()
    again = decoder.decode(codes, [second])

    assert second.slot == first.slot
    assert worst(again, fresh) < ROUNDING


def test_memory_is_given_back(tiny_codec: Path) -> None:
    decoder = CodecDecoder.load(tiny_codec)
    memory = decoder._stack.memory
    for seed in range(3):
        streams = [decoder.begin() for _ in range(5)]
        decoder.decode(random_codes(20, batch=5, seed=seed), streams)  # more than a piece, but nothing to copy
        assert memory._size == (16 if seed else 8)
        decoder.decode(random_codes(20, batch=5, seed=seed), streams)  # copies come and go
        assert memory.open_streams == 5
        for stream in streams:
            decoder.end(stream)

        assert memory.open_streams == 0
        assert memory._size == 16


def test_audio_depends_on_every_codebook_and_on_nothing_later(decoder: CodecDecoder) -> None:
    codes = random_codes(6)
    plain = decoder.decode(codes, [decoder.begin()])

    for level in range(12):
        other = codes.clone()
        other[0, 2, level] = (other[0, 2, level] + 1) % 1024
        changed = (decoder.decode(other, [decoder.begin()]) - plain).abs()
        assert changed[:, : 2 * FRAME].max() == 0
        assert changed[:, 2 * FRAME :].max() > 1e-3


def test_fewer_codebooks_are_a_coarser_version(
    decoder: CodecDecoder, tiny_codec: Path, straight: Callable[[Path], Any]
) -> None:
    codes = random_codes(9)[..., :5]

    made = decoder.decode(codes, [decoder.begin()])

    assert worst(made[0], straight(tiny_codec).decode(codes[0].numpy())) < ROUNDING


@pytest.mark.parametrize("seen", [30, 0], ids=["begun", "new"])
@pytest.mark.parametrize("frames", [5, 40], ids=["one piece", "several pieces"])
def test_a_failing_step_changes_no_stream(
    frames: int, seen: int, decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, codes = random_codes(seen), random_codes(frames, seed=1)
    untouched, stream = decoder.begin(), decoder.begin()
    for each in (untouched, stream):
        decoder.decode(begun, [each])
    expected = decoder.decode(codes, [untouched])
    last, compute, calls = decoder._stack._parts[-2], CausalTransformer.__call__, []

    def broken(self: CausalTransformer, x: Tensor, piece: Piece) -> Tensor:
        calls.extend([piece] * (self is last))
        found = compute(self, x, piece)
        if len(calls) == -(-frames // 16):
            raise RuntimeError("out of memory")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CausalTransformer, "__call__", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            decoder.decode(codes, [stream])

    assert stream.frames == seen
    assert worst(decoder.decode(codes, [stream]), expected) < ROUNDING


def test_a_step_that_fails_behind_a_short_reference_changes_no_stream(
    decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both fit into one piece, but go through the layers one after the other."""
    reference, codes = random_codes(4, seed=1), random_codes(3)
    expected = decoder.decode(codes, [decoder.begin()], reference=reference)
    stream, compute = decoder.begin(), CodecDecoder._piece

    def broken(self: CodecDecoder, piece: Tensor, streams: Any) -> Tensor:
        found = compute(self, piece, streams)
        if piece.shape[1] == 3:
            raise RuntimeError("out of memory")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CodecDecoder, "_piece", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            decoder.decode(codes, [stream], reference=reference)

    assert stream.frames == 0
    assert worst(decoder.decode(codes, [stream], reference=reference), expected) < ROUNDING


def test_no_frames_make_no_audio(decoder: CodecDecoder) -> None:
    assert decoder.decode(random_codes(0, batch=2), [decoder.begin(), decoder.begin()]).shape == (2, 0, 2)


def test_a_mono_codec_is_the_same_without_turns(decoder: CodecDecoder, tiny_codec: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_codec / "config.json").read_text(encoding="utf-8"))
    config |= {"number_channels": 1, "sampling_rate": 96000, "downsample_rate": 7680}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to(tiny_codec / "model.safetensors")
    mono, codes = CodecDecoder.load(tmp_path), random_codes(5)

    audio = mono.decode(codes, [mono.begin()])

    assert audio.shape == (1, 5 * 7680, 1)
    stereo = decoder.decode(codes, [decoder.begin()])
    assert worst(audio[0, :, 0].reshape(-1, 2), stereo[0]) < ROUNDING


def test_loud_audio_is_not_clamped(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from omni_models_moss.codec.tiny import write_codec

    write_codec(tmp_path, 3)
    weights = load_file(tmp_path / "model.safetensors")
    weights["decoder.6.output_proj.weight"] *= 20
    save_file(weights, tmp_path / "model.safetensors")
    decoder = CodecDecoder.load(tmp_path)

    assert decoder.decode(random_codes(4), [decoder.begin()]).abs().max() > 2


def test_half_precision_sounds_the_same(decoder: CodecDecoder, tiny_codec: Path) -> None:
    coarse = CodecDecoder.load(tiny_codec, dtype=torch.bfloat16)
    codes = random_codes(30)

    exact, rough = (each.decode(codes, [each.begin()]) for each in (decoder, coarse))

    assert rough.dtype == torch.float32
    assert (rough - exact).pow(2).mean() < 0.05 * exact.pow(2).mean()


def test_a_codec_of_other_sizes_is_refused(tiny_codec: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_codec / "config.json").read_text(encoding="utf-8"))
    config["decoder_kwargs"][0]["d_model"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to(tiny_codec / "model.safetensors")

    with pytest.raises(ConfigError, match=r"decoder\.0\.input_proj\.weight has the shape \[32, 24\] instead of \[64, 24\]"):
        CodecDecoder.load(tmp_path)


def test_a_tensor_that_nobody_knows_is_named(tiny_codec: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_codec / "config.json").read_text(encoding="utf-8"))
    config["quantizer_kwargs"]["num_quantizers"] = 11
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to(tiny_codec / "model.safetensors")

    with pytest.raises(ConfigError, match=r"does not know: quantizer\.quantizers\.11\."):
        CodecDecoder.load(tmp_path)
