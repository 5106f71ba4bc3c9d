"""The process of a stage host: what it is told, how it becomes one, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from omni_core.engine.channel import Channel, connect
from omni_core.engine.edge import Place
from omni_core.engine.meeting import remove_left
from omni_core.engine.messages import Fault, Ready, StartFailed, ToHost
from omni_core.engine.run_dir import remove_run_dirs
from omni_core.engine.stage_host import EXIT_ORPHANED, StageHost
from omni_core.engine.stage_log import STAGE_LOG_ENV, write_to_stage_log
from omni_core.engine.watch import RUN_DIR_ENV, WATCH_ENV, Watch, Watched, format_watched
from omni_core.errors import OmniError
from omni_core.logs import setup_logging
from omni_core.runner import StageRunner
from omni_core.stage import ResolvedStage
from omni_core.target import load_target

logger = logging.getLogger(__name__)

INIT_TIMEOUT_ENV = "OMNI_STAGE_INIT_TIMEOUT"
"""Seconds that an engine may take to start, for runners that wait for processes of their own."""
HEARTBEAT_TIMEOUT_ENV = "OMNI_STAGE_HEARTBEAT_TIMEOUT"
"""Seconds that an engine may be silent, for the same runners."""
EXIT_START_FAILED = 3
PARTING_S = 5.0
"""How long a host whose orchestrator has left without a word waits for the server's end, to clean up after it."""


@dataclass(frozen=True)
class HostSpec:
    """What a stage's process is told when it is started."""

    stage: ResolvedStage
    place: Place
    run_dir: str
    """Folder of the process that started it, which may be another one than the place's, where connectors meet."""
    socket: str
    log: str
    server: Watched
    environment: Mapping[str, str]
    process_name: str
    """`stage0-talker`: what log lines begin with."""
    log_level: str
    stream_slots: int = 0
    """Requests whose chunks are worked on at once (`active_stream_window`); 0 is no limit."""


def main(spec: HostSpec) -> None:
    """Run a stage until it is told to stop; the entry point of the process. Never returns."""
    watch = _become_stage(spec)
    code = 1
    try:
        code = asyncio.run(_run(spec))
    except OSError:
        logger.exception("stage %s: its host lost the orchestrator", spec.stage.name)
        code = EXIT_ORPHANED
    except Exception:  # whatever it was, it belongs in the log before the process ends
        logger.exception("stage %s: its host failed", spec.stage.name)
    finally:
        logging.shutdown()
        # A server's sockets close a moment before its process counts as gone.
        watch.give_way(PARTING_S if code == EXIT_ORPHANED else 0.0)
        # Engines leave threads behind that a normal exit would wait for.
        os._exit(code)


def _become_stage(spec: HostSpec) -> Watch:
    # Its own process group: Ctrl-C in the terminal is the server's to handle, and the watch can end the group.
    os.setpgid(0, 0)
    watch = Watch([spec.server], functools.partial(_remove_all, spec))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(spec.environment)
    os.environ[WATCH_ENV] = format_watched([spec.server, Watched.of(os.getpid())])
    os.environ[RUN_DIR_ENV] = spec.run_dir
    os.environ[STAGE_LOG_ENV] = spec.log
    write_to_stage_log()
    if "torch" in sys.modules:
        # A forked process has torch loaded, with the fork server's number of threads.
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    setup_logging(spec.process_name, level=spec.log_level)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"omni:{spec.stage.stage_id}:{spec.stage.topology.model_stage}"[:15])
    return watch


def _remove_all(spec: HostSpec) -> None:
    """Remove what a killed server leaves, its fork server's folder too: that one may have been killed with it."""
    remove_left(spec.run_dir, spec.place.run_dir)
    remove_run_dirs(spec.server)


async def _run(spec: HostSpec) -> int:
    channel: Channel[ToHost] = await connect(spec.socket, ToHost, "the orchestrator")
    started = time.monotonic()
    where = f"stage {spec.stage.name}"
    try:
        runner_class = cast("type[StageRunner]", load_target(spec.stage.runner, where=where))
        runner = runner_class(spec.stage, spec.place.replica)
        host = StageHost(spec.stage, runner, spec.place, channel, stream_slots=spec.stream_slots)
        facts = await host.start()
    except Exception as error:  # whatever a model's loading raises, the server reports it
        if not isinstance(error, OmniError):
            logger.exception("%s did not start", where)
        await channel.send(StartFailed(Fault.of(error, where=where)))
        await channel.close()
        return EXIT_START_FAILED
    await channel.send(Ready(dict(facts), time.monotonic() - started))
    return await host.serve()
