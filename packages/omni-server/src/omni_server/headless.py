"""`omni serve --headless`: a worker instead of a server, and the engine of a head; both start from the same flags."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import TYPE_CHECKING

from omni_server.arguments import make_engine_options, model_of, set_environment
from omni_server.stage_flags import StageFlags, worker_command
from omni_server.stopping import EXIT_CODES, StopSignal

if TYPE_CHECKING:
    from omni_core.client import AsyncOmni
    from omni_core.deploy.stage_command import StageCommand
    from omni_core.engine.remote.worker import Worker

logger = logging.getLogger(__name__)


def run_worker(args: argparse.Namespace, flags: StageFlags) -> int:
    """Run a worker until SIGTERM (exit code 0) or SIGINT (130); its requests have as much time to end as those of a server.

    Raises:
        OmniError: The configuration is wrong, the head refuses it or is gone, or the stage has ended.
    """
    from omni_core.engine.remote.worker import Worker
    from omni_core.engine.requirements import check_requirements

    set_environment(args)
    command = _command(args, flags)
    check_requirements(command.pipeline, command.own_stages)
    worker = Worker(command.pipeline, flags.worker, command.facts, make_engine_options(args), command.platform)
    return asyncio.run(run_until_stopped(worker, args.shutdown_timeout))


async def run_until_stopped(worker: Worker, drain_timeout_s: float) -> int:
    """Run a worker until a signal, and then until its requests have ended or `drain_timeout_s` is over; return the exit code.

    Raises:
        OmniError: As `Worker.run`.
    """
    stop = StopSignal()
    with stop.installed():
        running = asyncio.ensure_future(worker.run())
        stopping = asyncio.ensure_future(stop.event.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                logger.info("stopping: no new requests, up to %g s for those that run", drain_timeout_s)
                worker.leave()
                await _drain(worker, running, drain_timeout_s)
            if not running.cancelled():
                running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
    assert stop.number is not None, "a worker ends by an error or by a signal"
    logger.info("stopped by %s", stop.number.name)
    return EXIT_CODES[stop.number]


async def _drain(worker: Worker, running: asyncio.Future[None], drain_timeout_s: float) -> None:
    """Wait until a worker that leaves has ended; its requests have so long, and the end of its stage has limits of its own."""
    try:
        async with asyncio.timeout(drain_timeout_s):
            await worker.finished.wait()
    except TimeoutError:
        logger.warning("requests are cut off: they did not end within %g s", drain_timeout_s)
        running.cancel()
    await asyncio.wait({running})


def make_head(args: argparse.Namespace, flags: StageFlags) -> AsyncOmni:
    """Return the engine of a head, not started.

    Raises:
        OmniError: The configuration is wrong.
    """
    from omni_core.client import AsyncOmni
    from omni_core.engine.remote.head import Head

    command = _command(args, flags)
    head = Head(command.pipeline, flags.head, command.facts, worker_command(args, model_of(args), flags.address))
    return AsyncOmni.from_resolved(command.pipeline, options=make_engine_options(args), platform=command.platform, head=head)


def _command(args: argparse.Namespace, flags: StageFlags) -> StageCommand:
    from omni_core.deploy.flags import typed_flags
    from omni_core.deploy.stage_command import resolve_stage_command

    given = typed_flags(args)
    files, overrides = given.pop("deploy_config", None), given.pop("stage_overrides", None)
    return resolve_stage_command(
        model_of(args), flags.stage_id, replicas=flags.replicas, deploy_config=files, flags=given, stage_overrides=overrides
    )
