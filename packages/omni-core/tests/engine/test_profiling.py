"""The profiler of a stage: when it refuses, and what it writes."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_core.engine.light_runner import LightRunner
from omni_core.engine.profiling import PROFILE_DIR_ENV, StageProfiler, TorchProfiler, profile_folder
from omni_core.errors import RequestError, UnsupportedError
from omni_core.testing.pipelines import fake_pipeline

pytestmark = pytest.mark.anyio

STAGE = fake_pipeline().stages[1]


class Recorded(StageProfiler):
    """A profiler that writes an empty trace."""

    def __init__(self, folder: Path | None) -> None:
        self.log: list[str] = []
        super().__init__(STAGE, folder, self.begin, self.end)

    async def begin(self) -> None:
        self.log.append("begin")

    async def end(self, folder: Path) -> None:
        self.log.append("end")
        (folder / f"trace-{len(self.log)}").write_text("")


async def test_nothing_is_profiled_without_a_folder() -> None:
    profiler = Recorded(None)

    with pytest.raises(UnsupportedError, match="--profile-dir"):
        await profiler.call("start_profile")

    assert profiler.log == []


async def test_a_stop_returns_the_files_that_are_new(tmp_path: Path) -> None:
    profiler = Recorded(tmp_path / "stage")

    assert await profiler.call("start_profile") == []
    assert await profiler.call("stop_profile") == [str(tmp_path / "stage" / "trace-2")]
    await profiler.call("start_profile")
    assert await profiler.call("stop_profile") == [str(tmp_path / "stage" / "trace-4")]


async def test_starts_and_stops_alternate(tmp_path: Path) -> None:
    profiler = Recorded(tmp_path)

    with pytest.raises(RequestError, match="not being profiled"):
        await profiler.call("stop_profile")
    await profiler.call("start_profile")
    with pytest.raises(RequestError, match="already"):
        await profiler.call("start_profile")

    assert profiler.log == ["begin"]


async def test_a_start_that_failed_leaves_nothing_to_stop(tmp_path: Path) -> None:
    async def fail() -> None:
        raise UnsupportedError("no torch")

    profiler = StageProfiler(STAGE, tmp_path, fail, lambda folder: asyncio.sleep(0))

    with pytest.raises(UnsupportedError):
        await profiler.call("start_profile")
    with pytest.raises(RequestError, match="not being profiled"):
        await profiler.call("stop_profile")


def test_each_replica_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE_DIR_ENV, raising=False)
    assert profile_folder(STAGE, 0) is None

    monkeypatch.setenv(PROFILE_DIR_ENV, str(tmp_path))

    assert [profile_folder(STAGE, replica) for replica in (0, 1)] == [tmp_path / f"stage1-vocoder-{n}" for n in (0, 1)]


async def test_a_light_stage_without_torch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE_DIR_ENV, str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    runner = LightRunner(STAGE)
    await runner.start()
    try:
        with pytest.raises(UnsupportedError, match="without torch"):
            await runner.call("start_profile", {})
    finally:
        await runner.stop()


@pytest.mark.engine
def test_the_trace_has_what_the_thread_computed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    profiler = TorchProfiler()

    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            thread.submit(profiler.begin).result(60)
            thread.submit(lambda: torch.ones(8).cumsum(0)).result(60)
            thread.submit(profiler.end, tmp_path).result(60)

    for number in range(2):
        events = json.loads(gzip.decompress((tmp_path / f"trace-{number}.json.gz").read_bytes()))["traceEvents"]
        assert [event for event in events if event.get("name") == "aten::cumsum"]
