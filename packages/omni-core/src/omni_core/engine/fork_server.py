"""The fork server, from the server's side: started first thing, so that its imports run while the server itself starts."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from omni_core.engine.preload import MODULES_ENV, SERVER_ENV
from omni_core.engine.run_dir import make_private_dir, remove_run_dirs
from omni_core.engine.watch import Watched

if TYPE_CHECKING:
    from omni_core.platforms import Platform
    from omni_core.stage import ResolvedStage

QUIET = {"VLLM_LOGGING_LEVEL": "WARNING"}
"""Variables that processes below the server get where it has none."""

_starting = threading.Lock()
_thread = threading.local()
_begun: set[Watched] = set()
_preload: tuple[str, ...] = ()
_processes: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def begin(preload: Sequence[str]) -> BaseContext:
    """Start the fork server, unless it runs already, and return the context whose processes it forks.

    There is one for each server process. It keeps what it has loaded until the server ends, so that a second start is fast;
    modules that it lacks are imported by the stages that need them.
    """
    global _preload
    with _starting:
        _preload = tuple(dict.fromkeys((*_preload, *preload)))
        _ensure_running()
    return multiprocessing.get_context("forkserver")


def _ensure_running() -> None:
    """Start the fork server if it does not run, or not any more: a killed one is replaced when the next process is forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["omni_core.engine.preload"])
    server = Watched.of(os.getpid())
    told = {SERVER_ENV: str(server), MODULES_ENV: " ".join(_preload)}
    # vLLM sets its log up when it is imported. Its story of a start is long; ours is one line for each stage.
    told |= {name: value for name, value in QUIET.items() if name not in os.environ}
    # Its socket goes to a folder whose name says whose it is; multiprocessing's own would stay behind a killed server.
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config.setdefault("tempdir", make_private_dir(server, "mp"))
    _begun.add(server)
    os.environ.update(told)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        for name in told:
            del os.environ[name]


def context_for(platform: Platform, stages: Sequence[ResolvedStage]) -> BaseContext:
    """Return the context for the processes of stages; where they are forked, what they import is being imported already."""
    if platform.start_method == "forkserver" and stages:
        return begin([name for stage in stages for name in stage.modules])
    return spawner()


def spawner() -> BaseContext:
    """Return the context for platforms whose drivers do not survive a fork."""
    return multiprocessing.get_context("spawn")


def start_process(context: BaseContext, target: Callable[..., Any], args: tuple[Any, ...], name: str) -> BaseProcess:
    """Start a process; blocks until it is forked, which is as long as the fork server still imports."""
    process: BaseProcess = context.Process(target=target, args=args, name=name)  # type: ignore[attr-defined]
    _thread.starts_ours = True
    try:
        with _starting:
            if context.get_start_method() == "forkserver":
                _ensure_running()
            process.start()
    finally:
        _thread.starts_ours = False
    _processes.add(process)
    return process


@atexit.register
def _leave_nothing() -> None:
    # For a program that ends without closing its Omni: multiprocessing would wait for our processes, which are no daemons since
    # they may have children. It registered its own function earlier, so this one runs first.
    for process in list(_processes):
        with contextlib.suppress(ValueError):  # it was closed, as those are that have ended
            if process.pid is not None and process.is_alive():
                process.kill()
    for server in _begun:
        remove_run_dirs(server)


def _preparation_data(name: str) -> dict[str, Any]:
    # multiprocessing runs the user's script a second time in each child, to find functions defined there. Our children need
    # none, and a script that starts Omni at its top level, without `if __name__ == "__main__"`, would start it again in each.
    data: dict[str, Any] = _stock_preparation_data(name)
    if getattr(_thread, "starts_ours", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


_stock_preparation_data = spawn.get_preparation_data
spawn.get_preparation_data = _preparation_data
