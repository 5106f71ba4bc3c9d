"""How `omni serve` is told to stop: the first SIGTERM or SIGINT asks for an orderly end, the second kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}
"""Exit code after each signal: SIGTERM is how a server is meant to end, SIGINT is a person at the keyboard."""


class StopSignal:
    """SIGTERM and SIGINT as an event. The first asks for an orderly end, the second kills."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.number: signal.Signals | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take both signals of this process while the context is open."""
        loop = asyncio.get_running_loop()
        for number in EXIT_CODES:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in EXIT_CODES:
                loop.remove_signal_handler(number)

    async def or_done(self, work: Any) -> bool:
        """Await `work`; return False, having cancelled it, if a signal came first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self.event.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            for item in (task, stopped):
                item.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.number is not None:  # the stages watch this process and end with it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.number = number
        self.event.set()
