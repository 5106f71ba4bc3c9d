"""Every block of code in docs/realtime.md works as it stands against a server whose model is a script."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.testing import LoudEar, ScriptedTurnModel

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).resolve().parents[1] / "docs" / "realtime.md"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def spoken(fence: Fence) -> list[Any]:
    return [TextOut("good day", fence), AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence), TurnEnd(fence)]


class Ear(LoudEar):
    """Finds the end of speech in the same block: the examples send everything at once."""

    def push(self, pcm: Any) -> Any:
        return [event for half in np.array_split(pcm, 2) for event in super(Ear, self).push(half)]


async def run(desk: Path, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=desk, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()[-3000:]
    return out.decode()


def adapted(block: str, served: Any) -> str:
    return (
        block.replace("http://127.0.0.1:8000", served.page.removesuffix("/ui"))
        .replace("KEY", "key-1")
        .replace("MODEL", "org/fake-tts")
    )


async def test_the_blocks_of_the_page_do_what_it_says(serve_sessions: Callable[..., Any], tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "question.wav"), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(np.full(24_000, 9000, "<i2").tobytes())
    model = ScriptedTurnModel([spoken] * 4, Capabilities())
    realtime, live = blocks("python")
    (secret,) = blocks("bash")
    async with serve_sessions(model, ear=lambda capabilities, config: Ear()) as served:
        for name, block in (("realtime.py", realtime), ("live.py", live)):
            (tmp_path / name).write_text(adapted(block, served))

        assert await run(tmp_path, sys.executable, "realtime.py") == "good day\n"
        assert await run(tmp_path, sys.executable, "live.py") == "good day\nclose_requested\n"
        made = json.loads(await run(tmp_path, "bash", "-c", adapted(secret, served).replace("curl", "curl -sS")))

    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getnframes() == 2400
    assert made["value"].startswith("ek_")
    assert made["session"]["instructions"] == "Be brief."
