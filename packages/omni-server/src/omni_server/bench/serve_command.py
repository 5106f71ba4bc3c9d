"""The command `omni bench serve`: measure one server, or compare two."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.commands.output import write
from omni_core.errors import OmniError
from omni_server.bench.arguments import add_arguments, make_plan

if TYPE_CHECKING:
    from omni_server.bench.endpoint import Endpoint
    from omni_server.bench.report import LevelResult
    from omni_server.bench.run import BenchRun

logger = logging.getLogger(__name__)

INTERRUPTED = 130


class ServeBench:
    """Put load on one or two servers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Measure and write the results; after Ctrl-C, of what was measured so far (exit code 130).

        Raises:
            OmniError: A flag is wrong, matplotlib is missing for a plot, a server does not answer the warm-up, or a server
                answered nothing at all.
        """
        plan = make_plan(args)
        from omni_server.bench.plot import require_matplotlib

        if args.plot is not None:
            require_matplotlib()
        from omni_server.bench.run import BenchRun

        run = BenchRun(plan, _endpoint(args))
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        interrupted = False
        try:
            asyncio.run(run.measure())
        except KeyboardInterrupt:
            interrupted = True
        _write_results(run, started_at, args.json, args.plot)
        if interrupted:
            return INTERRUPTED
        run.require_success()
        return 0


def _endpoint(args: argparse.Namespace) -> Endpoint:
    from omni_server.bench.speech import DELIVERIES, SpeechEndpoint

    fields = {**DELIVERIES[args.delivery], **args.body}
    return SpeechEndpoint(fields, sample_rate=args.sample_rate, audible_db=args.audible_level)


def _write_results(run: BenchRun, started_at: str, json_path: Path | None, plot_path: Path | None) -> None:
    from omni_server.bench import report, tables
    from omni_server.bench.plot import save_plot

    results: Sequence[LevelResult] = [report.level_result(level) for level in run.levels]
    if not results:
        logger.warning("nothing was measured")
        return
    write(tables.as_text(results, run.endpoint))
    for text in tables.warnings(results):
        logger.warning("%s", text)
    try:
        if json_path is not None:
            json_path.write_text(json.dumps(report.as_json(run, results, started_at), indent=2) + "\n")
        if plot_path is not None:
            save_plot(results, run.endpoint, plot_path)
    except OSError as error:
        raise OmniError(f"{error.filename or 'the file'} cannot be written: {error.strerror}") from error
