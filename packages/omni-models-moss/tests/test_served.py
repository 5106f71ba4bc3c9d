"""Each architecture beside Local from a request to its audio: both engines, the connector, the codec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.client import AsyncOmni
from omni_core.speech import SpeechPrompt

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


async def _listen(omni: AsyncOmni, prompt: SpeechPrompt, rate: int) -> tuple[list[Any], list[Any], str | None]:
    """Return the pieces of audio, the frames, and why it ended."""
    pieces, frames, reason = [], [], None
    greedy: list[dict[str, Any]] = [{"temperature": 0.0}, {}]
    async for output in omni.generate(prompt, sampling_params_list=greedy):
        if output.data is not None and len(output.data):
            assert output.sample_rate == rate
            pieces.append(output.data)
            frames.append(output.tensors["codes"])
        reason = output.finish_reason or reason
    return pieces, frames, reason


@pytest.mark.parametrize(
    ("name", "variant", "rate", "channels", "most"),
    [
        ("moss_tts_delay", "ttsd", 24000, 1, 40),
        ("moss_tts_realtime", None, 24000, 1, 20),
        ("moss_tts_nano", None, 48000, 2, 20),
    ],
    ids=["delay", "realtime", "nano"],
)
def test_a_request_becomes_the_audio_of_its_frames(
    name: str,
    variant: str | None,
    rate: int,
    channels: int,
    most: int,
    tiny: Callable[..., Path],
    recording: Callable[..., Any],
) -> None:
    import torch

    from omni_models_moss.codec.decoder import CodecDecoder

    folder = tiny(name, variant)
    prompt = SpeechPrompt("Hello there world", ref_audio=recording(), max_new_tokens=most)

    async def run() -> list[tuple[list[Any], list[Any], str | None]]:
        async with AsyncOmni(str(folder)) as omni:
            return await asyncio.gather(*(_listen(omni, prompt, rate) for _ in range(2)))

    (pieces, frames, reason), (again, _, _) = asyncio.run(run())

    codes, audio = np.concatenate(frames), np.concatenate(pieces)
    decoder = CodecDecoder.load(folder / "audio_tokenizer")
    with torch.inference_mode():
        whole = decoder.decode(torch.from_numpy(codes).long()[None], [decoder.begin()])[0].numpy()
    assert len(pieces) > 1
    assert audio.shape == (len(codes) * rate * 2 // 25, channels)
    np.testing.assert_allclose(audio, whole, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(again), audio, atol=1e-5)
    assert reason in ("stop", "length")
