"""The processes of a measurement end with it, however it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from omni_connectors.bench import run
from omni_connectors.bench.ways import BASELINES, MEMCPY, SEGMENT, Way
from omni_core.errors import DeadlineError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that was started."""
    found: list[subprocess.Popen[bytes]] = []
    plain = run.Pair._start

    def start(pair: run.Pair, *arguments: Any) -> subprocess.Popen[bytes]:
        found.append(plain(pair, *arguments))
        return found[-1]

    monkeypatch.setattr(run.Pair, "_start", start)
    return found


def test_a_pair_that_does_not_start_in_time_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(run, "START_S", 0.0)

    with pytest.raises(DeadlineError, match="memcpy did not answer"):
        run.Pair(Way(MEMCPY), str(tmp_path))

    assert [process.poll() is not None for process in started] == [True]


def test_both_processes_of_a_pair_end_when_it_is_closed(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    assert SEGMENT in BASELINES
    pair = run.Pair(Way(SEGMENT), str(tmp_path))

    answer = pair.turn(1000, 2)
    pair.close()

    assert len(answer["took_ns"]) == 2
    assert [process.returncode for process in started] == [0, 0]


def test_a_stream_has_several_payloads_under_way_and_answers_for_each(tmp_path: Path) -> None:
    pair = run.Pair(Way(SEGMENT), str(tmp_path))

    try:
        answers = [pair.turn(1000, count, window=8) for count in (1, 5, 20)]
    finally:
        pair.close()

    assert [len(answer["took_ns"]) for answer in answers] == [1, 5, 20]
    assert all(answer["all_ns"] >= max(answer["put_ns"]) for answer in answers)
