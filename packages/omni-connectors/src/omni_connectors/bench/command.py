"""The command `omni bench connector`: measure connectors against memcpy, ZeroMQ, torch.multiprocessing and plain segments."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.commands.output import write
from omni_core.errors import ConfigError, OmniError
from omni_core.plugins import plugin_manager, unique_by_name
from omni_core.suggest import way_out

logger = logging.getLogger(__name__)

SIZES = "1KiB,64KiB,1MiB,16MiB,256MiB"
_SIZE = re.compile(r"([0-9]+)(|KiB|MiB|GiB)")
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
LARGEST = 2**30


def parse_sizes(text: str) -> list[int]:
    """Return the sizes of `1KiB,16MiB`.

    Raises:
        ConfigError: One is none, or it is larger than 1 GiB.
    """
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        nbytes = int(match.group(1)) * _UNITS[match.group(2)] if match else 0
        if not 0 < nbytes <= LARGEST:
            raise ConfigError(f"{part!r} is no size of 1 byte to 1 GiB", where="--sizes", hint=f"write them as in {SIZES}")
        sizes.append(nbytes)
    return sizes


class ConnectorBench:
    """Measure connectors."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "--connector",
            action="append",
            metavar="NAME",
            help="Connector class; may be repeated. Default: SharedMemoryConnector.",
        )
        parser.add_argument(
            "--extra", type=json.loads, default={}, metavar="JSON", help="Options of the connectors, by class name."
        )
        parser.add_argument(
            "--sizes", default=SIZES, metavar="N[,N...]", help="Sizes of payloads, such as 64KiB (default: %(default)s)."
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=1.5,
            metavar="S",
            help="About how long each way works on each size (default: %(default)s).",
        )
        parser.add_argument("--rounds", type=int, default=5, metavar="N", help="In how many turns (default: %(default)s).")
        parser.add_argument(
            "--no-baselines", action="store_true", help="Measure the connectors, memcpy and a message without a payload alone."
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="Write the results as JSON, too.")

    def run(self, args: argparse.Namespace) -> int:
        """Measure and write the table.

        Raises:
            OmniError: A flag is wrong, there is no such connector, or a process fails.
        """
        from omni_connectors.bench import report, run

        if args.seconds <= 0 or args.rounds < 1:
            raise ConfigError("--seconds must be above 0, and --rounds at least 1")
        sizes = parse_sizes(args.sizes)
        ways = self._ways(args.connector or ["SharedMemoryConnector"], args.extra, args.no_baselines)
        cells = report.make_cells(run.measure(ways, sizes, args.seconds, args.rounds, lambda line: logger.info("%s", line)))
        write(report.as_text(cells))
        if args.json is not None:
            try:
                args.json.write_text(json.dumps(report.as_json(cells, args.seconds, args.rounds), indent=2) + "\n")
            except OSError as error:
                raise OmniError(f"{args.json} cannot be written: {error.strerror}") from error
        return 0

    def _ways(self, names: Sequence[str], extra: Any, alone: bool) -> list[Any]:
        from omni_connectors.bench.ways import ALWAYS, BASELINES, NEEDS, Way

        known = unique_by_name(plugin_manager().collect("omni_connectors"), "connector")
        if not isinstance(extra, dict) or not set(extra) <= set(names):
            raise ConfigError(f"its keys must be among {', '.join(names)}", where="--extra", hint='such as {"NAME": {...}}')
        ways = []
        for name in BASELINES:
            if alone and name not in ALWAYS:
                continue
            if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
                logger.warning("%s is left out: %s is not installed", name, NEEDS[name])
                continue
            ways.append(Way(name))
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"there is no connector class {name!r}", where="--connector", hint=way_out(name, known, "connectors")
                )
            ways.append(Way(name, known[name].record.target, extra.get(name, {})))
        return ways


command = ConnectorBench()
