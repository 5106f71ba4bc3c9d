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

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME = 3840
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def decoder(tiny_codec: Path) -> CodecDecoder:
    return CodecDecoder.load(tiny_codec)


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


def test_golden_codes_become_the_references_audio_whole_and_streamed(spoken: Any) -> None:
    decoder = CodecDecoder.load(spoken.folder / "audio_tokenizer")
    codes = torch.from_numpy(spoken.array("codes"))[None]
    sizes = [4] * (codes.shape[1] // 4)

    assert worst(decoder.decode(codes, [decoder.begin()])[0].T, spoken.whole_wave) < ROUNDING
    assert worst(streamed(decoder, codes, sizes)[0].T, spoken.array("wav_streamed_0.32s")) < ROUNDING


def test_golden_codes_share_a_batch_with_others(spoken: Any) -> None:
    decoder = CodecDecoder.load(spoken.folder / "audio_tokenizer")
    codes = torch.from_numpy(spoken.array("codes"))[None]
    others = random_codes(codes.shape[1], batch=3, seed=1)

    made = decoder.decode(torch.cat((others[:2], codes, others[2:])), [decoder.begin() for _ in range(4)])

    assert worst(made[2].T, spoken.whole_wave) < ROUNDING


def test_a_continued_recording_is_heard_and_left_out(continued: Any) -> None:
    decoder = CodecDecoder.load(continued.folder / "audio_tokenizer")
    codes, reference = (torch.from_numpy(continued.array(name))[None] for name in ("codes", "ref_codes"))

    made = decoder.decode(codes, [decoder.begin()], reference=reference)

    assert worst(made[0].T, continued.array("wav")) < ROUNDING


@pytest.mark.parametrize("frames", [1, 7, 60])
def test_audio_is_that_of_a_straight_line_implementation(
    frames: int, decoder: CodecDecoder, tiny_codec: Path, straight: Callable[[Path], Any]
) -> None:
    codes = random_codes(frames)

    made = decoder.decode(codes, [decoder.begin()])

    # Sixty frames are several windows long at every rate.
    assert worst(made[0], straight(tiny_codec).decode(codes[0].numpy())) < ROUNDING


@pytest.mark.parametrize(
    "sizes",
    [[1] * 70, [1, 15, 15, 15, 15, 9], [16, 54], [70], [17, 16, 37], [3, 67], [33, 33, 4]],
    ids=lambda sizes: f"{len(sizes)}-chunks-from-{sizes[0]}",
)
def test_any_split_gives_the_one_shot_audio(
    sizes: list[int], decoder: CodecDecoder, tiny_codec: Path, straight: Callable[[Path], Any]
) -> None:
    codes = random_codes(70)

    made = streamed(decoder, codes, sizes)

    assert worst(made[0], straight(tiny_codec).decode(codes[0].numpy())) < ROUNDING


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
    for round_number in range(3):
        streams = [decoder.begin() for _ in range(5)]
        decoder.decode(random_codes(20, batch=5, seed=round_number), streams)  # more than a piece: copies come and go
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


@pytest.mark.parametrize("frames", [5, 40], ids=["one piece", "several pieces"])
def test_a_failing_step_changes_no_stream(
    frames: int, decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, codes = random_codes(30), random_codes(frames, seed=1)
    untouched, stream = decoder.begin(), decoder.begin()
    for each in (untouched, stream):
        decoder.decode(begun, [each])
    expected = decoder.decode(codes, [untouched])
    last = decoder._stack._parts[-2]
    calls = []

    def broken(x: Tensor, piece: Any) -> Tensor:
        calls.append(piece)
        if len(calls) == -(-frames // 16):
            raise RuntimeError("out of memory")
        return last(x, piece)  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setitem(decoder._stack._parts, -2, broken)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="out of memory"):
            decoder.decode(codes, [stream])

    assert stream.frames == 30
    assert worst(decoder.decode(codes, [stream]), expected) < ROUNDING


def test_no_frames_make_no_audio(decoder: CodecDecoder) -> None:
    assert decoder.decode(random_codes(0, batch=2), [decoder.begin(), decoder.begin()]).shape == (2, 0, 2)


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
