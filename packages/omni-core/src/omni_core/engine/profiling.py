"""The profiler of a stage: off unless the server was started with a folder for its traces. Runs in the stage host.

`start_profile` and `stop_profile` are calls of operators (`call_desk`). Each replica has a folder of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_core import envs
from omni_core.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

PROFILE_DIR_ENV = "OMNI_PROFILE_DIR"
"""Where traces go; the flag `--profile-dir` sets it."""
METHODS = frozenset({"start_profile", "stop_profile"})


def profile_folder(stage: ResolvedStage, replica: int) -> Path | None:
    """Return where a stage replica's traces go, None if nothing is profiled here."""
    parent = envs.read(PROFILE_DIR_ENV)
    return Path(parent).resolve() / f"stage{stage.stage_id}-{stage.topology.model_stage}-{replica}" if parent else None


class StageProfiler:
    """Profile a stage between two calls.

    Args:
        stage: The stage.
        folder: Where its traces go; None refuses to profile.
        begin: Starts the profiler.
        end: Stops it and writes into the folder.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        folder: Path | None,
        begin: Callable[[], Awaitable[Any]],
        end: Callable[[Path], Awaitable[Any]],
    ) -> None:
        self._where = f"stage {stage.name}"
        self._folder = folder
        self._begin = begin
        self._end = end
        self._before: set[Path] | None = None
        """The files that were there at the start; None while nothing is profiled."""

    async def call(self, method: str) -> list[str]:
        """Start, which returns nothing, or stop and return the files that were written.

        Raises:
            UnsupportedError: The server was started without a folder, or this stage has nothing to profile.
            RequestError: It is profiled already, or not at all.
        """
        if self._folder is None:
            hint = "start the server with --profile-dir"
            raise UnsupportedError("there is no folder for traces", where=self._where, hint=hint)
        if method == "start_profile":
            if self._before is not None:
                raise RequestError("it is being profiled already", where=self._where, hint="stop that first")
            self._folder.mkdir(parents=True, exist_ok=True)
            await self._begin()
            self._before = _files(self._folder)
            return []
        if self._before is None:
            raise RequestError("it is not being profiled", where=self._where, hint="start it first")
        before, self._before = self._before, None
        await self._end(self._folder)
        # Engines write from processes of their own, which have ended their part when the call is back.
        return sorted(str(path) for path in await asyncio.to_thread(_files, self._folder) - before)


class TorchProfiler:
    """PyTorch's profiler over one thread; both methods are called in that thread."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Start.

        Raises:
            UnsupportedError: This process has not loaded torch.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            raise UnsupportedError("this stage computes without torch, so there is nothing to profile")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profile.start()

    def end(self, folder: Path) -> None:
        """Stop and write a trace for chrome://tracing or Perfetto, under a name that is not taken."""
        profile, self._profile = self._profile, None
        profile.stop()
        free = (path for number in self._numbers if not (path := folder / f"trace-{number}.json.gz").exists())
        profile.export_chrome_trace(str(next(free)))


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
