"""Whether an engine core still lives: it answers, or it computes. Runs in the stage host, at each of its heartbeats.

A core that was stopped or hangs keeps its socket open, and nothing else would tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import psutil

from omni_core.errors import StageDeadError


class Pulse:
    """Ask a core, again and again, without waiting for it.

    A core that is in the middle of a long step or loads weights does not answer, but its processor time goes on.

    Args:
        llm: vLLM's AsyncLLM.
        pids: The core's processes.
        silence_s: A core that neither answers nor computes for this long is dead.
        where: The stage, for the error.
    """

    def __init__(self, llm: Any, pids: Sequence[int], silence_s: float, where: str) -> None:
        self._llm = llm
        self._pids = pids
        self._limit = silence_s
        self._where = where
        self._asked: asyncio.Future[Any] | None = None
        self._computed = 0.0
        self._silent_s = 0.0

    def check(self, elapsed_s: float) -> None:
        """Take the answer to the last question, and ask the next.

        Args:
            elapsed_s: Seconds since the last call, as far as this process has lived through them: one that was stopped itself
                must not take its core for silent.

        Raises:
            StageDeadError: It has been silent for too long.
        """
        computed = self._processor_time()
        answered = self._asked is None or self._asked.done()
        if answered or computed > self._computed:
            self._silent_s = 0.0
        else:
            self._silent_s += elapsed_s
        self._computed = computed
        if answered:
            self._ask()
        if self._silent_s > self._limit:
            self.stop()
            raise StageDeadError(f"the engine core was silent for {self._limit:g} s", where=self._where)

    def _ask(self) -> None:
        if self._asked is not None and not self._asked.cancelled():
            # An engine that is dead says so elsewhere; the failure was an answer, too.
            self._asked.exception()
        self._asked = asyncio.ensure_future(self._llm.is_sleeping())

    def _processor_time(self) -> float:
        total = 0.0
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total

    def stop(self) -> None:
        """Expect no answer any more."""
        if self._asked is not None:
            self._asked.cancel()
