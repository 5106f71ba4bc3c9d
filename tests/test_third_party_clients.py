"""Frameworks that speak OpenAI's protocols hold a conversation with us as they are, each in a virtual environment of its own.

The scripts are in tests/clients. They get an address, a key, a model's name and what is to be said, and tell what they heard.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.testing import LoudEar, ScriptedTurnModel

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(1800)]

SCRIPTS = Path(__file__).parent / "clients"
BUILD_TIMEOUT_S = 900
ANSWER = 48_000
"""Bytes of one answer."""
PACKAGES = {
    "openai-agents": "openai-agents==0.24.0",
    "livekit": "livekit-plugins-openai==1.8.9",
    "pipecat": "pipecat-ai[openai]==1.14.0",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def python_with() -> Iterator[Callable[[str], Path]]:
    """Return the interpreter of a new environment with a package; skip the test where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="omni-clients-") as folder:
        built: dict[str, Path] = {}

        def build(name: str) -> Path:
            if name not in built:
                venv = Path(folder) / name
                subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
                command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGES[name]]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
                except subprocess.TimeoutExpired:
                    pytest.skip(f"pip took more than {BUILD_TIMEOUT_S} s for {PACKAGES[name]}")
                if done.returncode:
                    pytest.skip(f"{PACKAGES[name]} cannot be had: {done.stderr.strip().splitlines()[-1]}")
                built[name] = venv / "bin" / "python"
            return built[name]

        yield build


def spoken(fence: Fence) -> list[Any]:
    half = AudioOut(np.full(12_000, 0.25, np.float32), 24_000, fence)
    return [TextOut("good ", fence), half, TextOut("day", fence), half, TurnEnd(fence)]


def question() -> bytes:
    """0.2 s of silence, half a second of sound, a second of silence; PCM16 at 24 kHz."""
    sound = 9000 * np.sin(np.arange(12_000) / 9)
    return np.concatenate([np.zeros(4800), sound, np.zeros(24_000)]).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("package", "script", "answers"),
    [
        ("openai-agents", "openai_agents_client.py", 2),
        ("livekit", "livekit_client.py", 2),
        ("livekit", "livekit_live_client.py", 1),
        ("pipecat", "pipecat_client.py", 2),
    ],
)
async def test_a_framework_talks_to_us_as_it_is(
    serve_sessions: Callable[..., Any], python_with: Callable[[str], Path], package: str, script: str, answers: int
) -> None:
    """The second time it speaks while the first answer is still played."""
    python = await asyncio.to_thread(python_with, package)
    model = ScriptedTurnModel([spoken] * 8, Capabilities(text_input=True, text_output=True, tools=True))
    async with serve_sessions(model, ear=LoudEar.maker(200)) as served:
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(SCRIPTS / script), served.url, "key-1", "org/fake-tts"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "HOME": tempfile.gettempdir(), "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        )
        out, err = await asyncio.wait_for(process.communicate(question()), 120)
        assert process.returncode == 0, err.decode()[-3000:]
        assert await served.free_slots() == 2

    found = json.loads(out.decode().splitlines()[-1])
    assert found["errors"] == []
    assert found["audio"] == answers * ANSWER
    assert "good day" in found["transcript"]
    assert found["interrupted"] == answers - 1
