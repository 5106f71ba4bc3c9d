"""The installed plugin through Omni: the commands, the Python API and the server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from omni_plugin_echo.checkpoint import load_pitches

from omni_core.client import AsyncOmni
from omni_core.errors import RequestError

pytestmark = pytest.mark.usefixtures("installed")
START_S = 120.0


def omni(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)


def expected_samples(text: str, folder: Path, factor: float) -> np.ndarray[Any, Any]:
    """Play the text without Omni."""
    frequencies = np.repeat(load_pitches(folder)[[ord(character) % 64 for character in text]].astype(np.float64), 640)
    return 0.5 * np.sin(2 * np.pi * np.cumsum(frequencies * factor / 16_000))


async def speak(model: AsyncOmni, prompt: Any) -> list[Any]:
    return [output async for output in model.generate(prompt)]


def test_omni_tiny_builds_a_checkpoint_and_echo_info_reads_it(tmp_path: Path) -> None:
    built = omni("tiny", "echo", str(tmp_path / "model"))
    assert built.returncode == 0, built.stderr

    told = omni("echo-info", str(tmp_path / "model"))

    assert told.returncode == 0, told.stderr
    assert told.stdout == "sample rate: 16000 Hz\none character: 40 ms\nvoices: low, high\n"


def test_a_folder_that_is_no_checkpoint_is_an_error_of_one_line(tmp_path: Path) -> None:
    told = omni("echo-info", str(tmp_path))

    assert told.returncode == 2
    assert told.stderr.startswith("error: ")
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
def test_requests_become_their_own_audio(checkpoint: Path, async_chunk: bool) -> None:
    texts = ["hello", "a", "the quick brown fox", "Übermut tut selten gut"]

    async def run() -> list[list[Any]]:
        async with AsyncOmni(str(checkpoint), async_chunk=async_chunk) as model:
            with pytest.raises(RequestError):
                await speak(model, {"text": "hi", "voice": "nobody"})
            return list(await asyncio.gather(*(speak(model, {"text": text, "voice": "high"}) for text in texts)))

    for text, outputs in zip(texts, asyncio.run(run()), strict=True):
        audio = np.concatenate([output.data for output in outputs])
        assert [output.finished for output in outputs].count(True) == 1
        assert outputs[-1].finished
        assert outputs[0].sample_rate == 16_000
        assert async_chunk == (len(outputs) > 1) or len(text) <= 4
        np.testing.assert_allclose(audio[:, 0], expected_samples(text, checkpoint, 2.0), atol=1e-4)


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path) -> Iterator[str]:
    testing = pytest.importorskip("omni_server.testing")
    log = tmp_path / "serve.log"
    with testing.serve(checkpoint, log=log, timeout_s=START_S) as running:
        yield running.url
        assert running.stop() == 0, log.read_text()


def test_the_server_speaks(server: str, checkpoint: Path) -> None:
    body = {"model": str(checkpoint), "input": "hello there", "voice": "low", "response_format": "pcm"}

    answer = httpx.post(f"{server}/v1/audio/speech", json=body, timeout=60.0)

    assert answer.status_code == 200, answer.text
    heard = np.frombuffer(answer.content, "<i2") / 32768
    np.testing.assert_allclose(heard, expected_samples("hello there", checkpoint, 1.0), atol=1e-3)


def test_the_server_refuses_an_unknown_voice(server: str, checkpoint: Path) -> None:
    body = {"model": str(checkpoint), "input": "hello", "voice": "nobody"}

    answer = httpx.post(f"{server}/v1/audio/speech", json=body, timeout=60.0)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "voice"
