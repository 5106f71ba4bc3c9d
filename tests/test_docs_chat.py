"""Every block of code in docs/chat.md, and the example beside it, works as it stands against a server of a tiny model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from omni_server.chat_protocol import ChatRequest
from omni_server.testing import RunningServer

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "chat.md"
ADDRESS, MODEL = "http://127.0.0.1:8000", "Qwen/Qwen3-Omni-30B-A3B-Instruct"
OFFLINE = "from omni_core import Omni"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def desk(chat_folder: Path, tmp_path: Path) -> Path:
    """A folder with the files that the examples read."""
    shutil.copy(chat_folder / "inputs" / "in_a.wav", tmp_path / "sound.wav")
    shutil.copy(chat_folder / "inputs" / "in_a.png", tmp_path / "photo.png")
    return tmp_path


def run(desk: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        return file.getnframes() / 24000


def test_the_page_has_the_blocks_that_are_run() -> None:
    assert len(blocks("python")) == 5
    assert len(blocks("bash")) == 1
    assert sum(OFFLINE in block for block in blocks("python")) == 1


def test_each_block_of_the_official_client_does_what_it_says(chat_server: RunningServer, desk: Path) -> None:
    for number, block in enumerate(block for block in blocks("python") if OFFLINE not in block):
        (desk / f"{number}.py").write_text(block.replace(ADDRESS, chat_server.url))

        assert run(desk, sys.executable, f"{number}.py").endswith("\n") or number == 2

    assert seconds(desk / "answer.wav") > 0
    assert seconds(desk / "stream.wav") > 0


def test_the_command_of_the_shell_gets_an_answer(chat_server: RunningServer, desk: Path) -> None:
    (command,) = blocks("bash")

    answer = json.loads(run(desk, "bash", "-c", command.replace("curl", "curl -sS").replace(ADDRESS, chat_server.url)))

    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_the_block_without_a_server_writes_and_speaks(chat_folder: Path, desk: Path) -> None:
    (block,) = (block for block in blocks("python") if OFFLINE in block)
    small = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, "default_sampling_params": {"max_tokens": 20}}
    model = f"{str(chat_folder)!r}, stage_overrides={ {0: small, 1: small}!r}"
    (desk / "offline.py").write_text(block.replace(f'"{MODEL}"', model))

    said = run(desk, sys.executable, "offline.py")

    assert "24000" in said


def test_the_example_writes_what_was_spoken_and_feeds_a_player(chat_server: RunningServer, desk: Path) -> None:
    player = f"{sys.executable} -c \"import sys; open('played', 'wb').write(sys.stdin.buffer.read())\""

    said = run(
        desk, sys.executable, str(ROOT / "examples" / "chat.py"), chat_server.url, "sound.wav", "out.wav", "--player", player
    )

    assert "in text:" in said
    assert "spoken:" in said
    assert seconds(desk / "out.wav") * 48000 == (desk / "played").stat().st_size > 0


def test_every_field_of_a_request_is_on_the_page() -> None:
    text = PAGE.read_text()

    internal = {"model", "store", "service_tier"}
    missing = [name for name in ChatRequest.model_fields if f"`{name}" not in text and f".{name}`" not in text]

    assert sorted(set(missing) - internal) == []
