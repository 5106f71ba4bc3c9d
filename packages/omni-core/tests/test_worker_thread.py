"""Whoever calls keeps the deadline, whatever the function does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from omni_core.errors import DeadlineError, ServiceError
from omni_core.worker_thread import WorkerThread

LONG_S = 60.0


@pytest.fixture
def worker() -> Iterator[WorkerThread]:
    worker = WorkerThread("the library")
    yield worker
    worker.close(LONG_S)


def test_results_and_errors_come_back(worker: WorkerThread) -> None:
    assert worker.call(lambda: threading.current_thread().name, LONG_S) == "the library"
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0, LONG_S)
    with pytest.raises(TimeoutError, match="its own"):
        worker.call(lambda: (_ for _ in ()).throw(TimeoutError("its own")), LONG_S)


def test_a_call_that_hangs_ends_at_its_deadline_and_is_finished_all_the_same(worker: WorkerThread) -> None:
    go, done = threading.Event(), threading.Event()

    def hang() -> None:
        go.wait(LONG_S)
        done.set()

    with pytest.raises(DeadlineError, match=r"the library did not answer within 0\.05 s"):
        worker.call(hang, 0.05)

    go.set()
    assert done.wait(LONG_S)
    assert worker.call(lambda: 5, LONG_S) == 5


def test_a_call_that_cannot_begin_in_time_is_not_run(worker: WorkerThread) -> None:
    go, ran = threading.Event(), []
    worker.start(lambda: go.wait(LONG_S))

    with pytest.raises(DeadlineError):
        worker.call(lambda: ran.append(1), 0.05)
    go.set()

    worker.call(lambda: None, LONG_S)
    assert ran == []


def test_functions_run_in_order(worker: WorkerThread) -> None:
    found: list[int] = []
    futures = [worker.start(lambda number=number: found.append(number)) for number in range(50)]

    futures[-1].result(LONG_S)

    assert found == list(range(50))


def test_a_closed_thread_finishes_what_it_has_and_refuses_more() -> None:
    worker = WorkerThread("the library")
    future = worker.start(lambda: 7)

    assert worker.close(LONG_S)
    assert worker.close(LONG_S)

    assert future.result(0) == 7
    with pytest.raises(ServiceError, match="closed"):
        worker.call(lambda: None, LONG_S)


def test_a_thread_that_hangs_is_reported_by_close() -> None:
    worker, go = WorkerThread("the library"), threading.Event()
    worker.start(lambda: go.wait(LONG_S))

    assert not worker.close(0.05)

    go.set()
    assert worker.close(LONG_S)
