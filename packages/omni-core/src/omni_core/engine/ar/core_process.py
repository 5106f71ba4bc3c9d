"""The engine core's process: forked from our fork server where there is one, watched, and able to say why it could not start.

`CoreContext` stands in for the multiprocessing context that vLLM would choose. Runs in the stage host, `_run_core` in the core.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from typing import Any

from omni_core.engine.stage_log import write_to_stage_log
from omni_core.engine.vllm_bridge import engine_utils
from omni_core.engine.watch import RUN_DIR_ENV, watch_from_environment
from omni_core.errors import StageStartError


def core_context(platform: str) -> BaseContext:
    """Return the context from which engine cores of a platform start.

    CUDA does not survive a fork. Elsewhere it is the fork server: the one this process came from, or one of its own.
    """
    if platform == "cuda":
        return multiprocessing.get_context("spawn")
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server.get_inherited_fds() is not None and server._forkserver_pid is None:
        # The documentation promises that children use their parent's fork server, but ensure_running starts another one,
        # because only the process that launched it knows its pid. All that a client needs is inherited.
        server.ensure_running = resource_tracker.ensure_running
    return multiprocessing.get_context("forkserver")


class CoreContext:
    """A context whose processes are engine cores.

    Args:
        context: Where processes come from.
        environment: Set in the core before anything else; a forked core has the fork server's environment, not ours.
        models: Architectures and targets of model classes to register there.
    """

    def __init__(self, context: BaseContext, environment: Mapping[str, str], models: Mapping[str, str]) -> None:
        self._context = context
        self._environment = dict(environment)
        self._models = dict(models)
        self._reports: list[tuple[Connection, Connection]] = []
        self.processes: list[BaseProcess] = []
        self._is_killed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def Process(self, *, target: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> BaseProcess:
        """Return a process that is not started yet."""
        if self._is_killed:
            raise StageStartError("the start was given up")
        reader, writer = self._context.Pipe(duplex=False)
        self._reports.append((reader, writer))
        arguments = (target, dict(kwargs), {**os.environ, **self._environment}, self._models, writer)
        forked = self._context.get_start_method() == "forkserver"
        kind: Any = ForkedCore if forked else self._context.Process  # type: ignore[attr-defined]
        process: BaseProcess = kind(target=_run_core, name=name, args=arguments)
        self.processes.append(process)
        return process

    def failure(self) -> str:
        """Return what the core said before it died, empty if it said nothing."""
        for reader, writer in self._reports:
            # Our copy of the writing end; with it open the end of the core's would not be seen.
            writer.close()
            with contextlib.suppress(EOFError, OSError):
                if reader.poll(1.0):
                    return str(reader.recv())
        return ""

    def kill(self) -> None:
        """Kill the core at once, and start no other."""
        self._is_killed = True
        for process in self.processes:
            if process.pid is not None:
                process.kill()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let vLLM start its engine cores here."""
        original = engine_utils.get_mp_context
        engine_utils.get_mp_context = lambda: self
        try:
            yield
        finally:
            engine_utils.get_mp_context = original


class ForkedCore(ForkServerProcess):
    """A core from the fork server whose end is seen at the core itself.

    The stock sentinel is a pipe from the fork server, so that vLLM would take the end of that for the end of the core.
    """

    def start(self) -> None:
        """Start the process and watch it by its number."""
        super().start()
        # One that is gone by now has a fork server that says so.
        with contextlib.suppress(ProcessLookupError):
            self._sentinel = os.pidfd_open(self.pid or 0)


def _run_core(
    target: Callable[..., Any],
    kwargs: dict[str, Any],
    environment: dict[str, str],
    models: dict[str, str],
    report: Connection,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    write_to_stage_log()
    watch_from_environment()
    # vLLM's rendezvous file stays where its engine is killed; in the run directory it goes with it.
    tempfile.tempdir = os.environ.get(RUN_DIR_ENV)
    try:
        _prepare(models)
        target(**kwargs)
    except Exception as error:  # the host is told the reason, whatever it is; raised again
        with contextlib.suppress(OSError):  # nobody listens any more
            report.send(_root_cause(error))
        raise
    finally:
        report.close()


def _prepare(models: Mapping[str, str]) -> None:
    import torch
    from tqdm import tqdm

    from omni_core.engine.ar.model_class import load_model_class
    from omni_core.engine.vllm_bridge import current_platform
    from omni_core.engine.vllm_plugin import register

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # The lock of its bars is for several processes otherwise: a named semaphore, which a killed core leaves in /dev/shm.
    tqdm.set_lock(threading.RLock())
    register()
    if current_platform.is_cpu():
        from omni_core.engine.ar import cpu_lora

        cpu_lora.install()
    for architecture, target in models.items():
        load_model_class(architecture, target, where=f"architecture {architecture}")


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
