"""The demo and the examples do what their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]


def _run(traces: Any, *command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **traces.env, "PATH": path}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    traces.wait_until_gone()
    return done.stdout


def _seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert file.getframerate() == 24000
        return file.getnframes() / 24000


def test_the_demo_writes_audio_and_says_what_it_did(traces: Any, tmp_path: Path) -> None:
    said = _run(traces, "scripts/demo.py", "--out", str(tmp_path))

    assert _seconds(tmp_path / "whole.wav") > 0
    assert _seconds(tmp_path / "streamed.wav") > 0
    for part in ("real-time factor", "first audio after", "random", "omni serve Qwen/", "exit code 0"):
        assert part in said
    assert said.count(" ready in ") == 2


def test_the_offline_example_writes_a_file_for_each_text(tiny: Callable[[], Path], traces: Any, tmp_path: Path) -> None:
    _run(traces, "examples/offline.py", str(tiny()), str(tmp_path / "out"))

    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["0.wav", "1.wav", "2.wav"]


def test_the_serving_example_writes_what_it_was_asked_for(tiny: Callable[[], Path], traces: Any, tmp_path: Path) -> None:
    said = _run(traces, "examples/serve_and_call.py", str(tiny()), "Hello, I am speaking.", str(tmp_path / "hello.wav"))

    assert _seconds(tmp_path / "hello.wav") > 0
    assert "s of audio" in said
