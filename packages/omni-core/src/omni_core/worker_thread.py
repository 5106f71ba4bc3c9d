"""A thread for calls of a library that may not return in time, so that whoever calls can keep a deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from omni_core.errors import DeadlineError, ServiceError

T = TypeVar("T")
_Task = tuple[Callable[[], Any], "Future[Any]"]


class WorkerThread:
    """Run functions one after the other in a thread that does not keep the process alive.

    A function that nobody waits for any more is finished all the same, before the next one begins; a library's memory is
    therefore safe in its hands. A function that no longer begins in time is not run at all.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what `function` returns, or raise what it raises.

        Raises:
            DeadlineError: It did not end within `timeout_s`.
            ServiceError: The thread was closed.
        """
        future = self.start(function)
        try:
            return future.result(max(0.0, timeout_s))
        except TimeoutError:
            if not future.done():
                future.cancel()
                raise DeadlineError(f"{self._name} did not answer within {timeout_s:g} s") from None
            return future.result()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Have `function` run without waiting for it.

        Raises:
            ServiceError: The thread was closed.
        """
        if self._closed:
            raise ServiceError(f"{self._name} is closed")
        future: Future[T] = Future()
        self._tasks.put((function, future))
        return future

    def close(self, timeout_s: float) -> bool:
        """End the thread after what it was given; return whether it ended within `timeout_s`. May be called twice."""
        self._closed = True
        self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - whoever waits raises it again
                future.set_exception(error)
            del task, function, future
