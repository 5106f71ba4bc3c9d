from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.engine import stage_log
from omni_core.engine.stage_log import StageLog


def test_lines_go_to_stderr_under_the_stages_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stage0.log"
    log = StageLog(str(path), "stage0-talker")
    log.read()
    path.write_text('plain\n(stage0-talker pid=7) INFO ours\n{"json": 1}\nhalf a')
    log.read()

    with path.open("a") as file:
        file.write(" line\n")
    log.read()

    assert capsys.readouterr().err.splitlines() == [
        "stage0-talker | plain",
        "(stage0-talker pid=7) INFO ours",
        '{"json": 1}',
        "stage0-talker | half a line",
    ]
    assert list(log.tail)[-1] == "half a line"


def test_log_that_grows_too_long_is_emptied_and_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage_log, "MAX_LOG_BYTES", 100)
    path = tmp_path / "stage0.log"
    log = StageLog(str(path), "s")

    for number in range(50):
        with path.open("a") as file:
            file.write(f"line {number}\n")
        log.read()
        assert path.stat().st_size <= 110

    assert capsys.readouterr().err.splitlines() == [f"s | line {number}" for number in range(50)]
