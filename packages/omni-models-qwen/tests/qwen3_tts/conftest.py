"""Codec decoders of checkpoint folders, loaded once; torch on one thread, as the golden outputs were made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_models_qwen.qwen3_tts.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with all parts."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    build_tiny(folder, "base", 3)
    return folder


@pytest.fixture(scope="session")
def decoder_of() -> Callable[..., Any]:
    """Return the codec decoder of a checkpoint folder, in float32 or another dtype."""
    import torch

    from omni_models_qwen.qwen3_tts.codec_decoder import CodecDecoder

    loaded: dict[tuple[Path, str], CodecDecoder] = {}

    def load(folder: Path, dtype: str = "float32") -> CodecDecoder:
        key = folder, dtype
        if key not in loaded:
            with torch.inference_mode():
                loaded[key] = CodecDecoder.load(folder / "speech_tokenizer", dtype=getattr(torch, dtype))
        return loaded[key]

    return load


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the stage host does."""
    return "asyncio"
