from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from omni_models_moss.codec.tiny import write_codec

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


def test_equal_seeds_give_equal_files(tiny_codec: Path, tmp_path: Path) -> None:
    write_codec(tmp_path / "same", 3)
    write_codec(tmp_path / "other", 4)

    files = [folder / "model.safetensors" for folder in (tiny_codec, tmp_path / "same", tmp_path / "other")]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other
    assert len(first) < 1 << 20


@pytest.mark.parametrize("seed", range(3))
def test_it_is_as_loud_as_speech_and_tells_sounds_apart(seed: int, tmp_path: Path) -> None:
    import torch

    from omni_models_moss.codec.decoder import CodecDecoder
    from omni_models_moss.codec.encoder import CodecEncoder

    write_codec(tmp_path, seed)
    decoder, encoder = CodecDecoder.load(tmp_path), CodecEncoder.load(tmp_path)
    codes = torch.randint(0, 1024, (1, 40, 12), generator=torch.Generator().manual_seed(0))

    audio = decoder.decode(codes, [decoder.begin()])[0]

    assert 0.03 < float(audio.std()) < 0.15
    assert float((audio.abs() > 1).float().mean()) < 0.001
    assert len(np.unique(encoder(audio).numpy())) > 200
