"""The flags of `omni serve` for pipelines whose stages are started one by one, on one host or several (SB-01 to SB-06)."""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_core.engine.remote.settings import HeadAddress, HeadOptions, WorkerOptions, check_head, check_own_address, read_token
from omni_core.errors import ConfigError

logger = logging.getLogger(__name__)

NO_STAGE = "none"


@dataclass(frozen=True)
class StageFlags:
    """What these flags say."""

    stage_id: int | None
    """The command's own stage; None is `--stage-id none`."""
    address: HeadAddress
    headless: bool
    replica_address: str
    replicas: int | None
    heartbeat_timeout_s: float
    head_timeout_s: float

    @property
    def head(self) -> HeadOptions:
        """The options of a head."""
        own = frozenset() if self.stage_id is None else frozenset({self.stage_id})
        return HeadOptions(own, self.address, self.heartbeat_timeout_s)

    @property
    def worker(self) -> WorkerOptions:
        """The options of a worker."""
        assert self.stage_id is not None
        return WorkerOptions(self.stage_id, self.address, self.replica_address, self.heartbeat_timeout_s, self.head_timeout_s)


def add_stage_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    text = "run this stage alone, and register with the head or be it; `none` is a head whose stages are all elsewhere"
    group.add_argument("--stage-id", type=_stage_id, metavar="ID", help=text)
    text = "run the stage for a head elsewhere, with no API server"
    group.add_argument("--headless", action="store_true", help=text)
    text = "address of the head, where it listens for workers"
    group.add_argument("--omni-master-address", "-oma", metavar="HOST", help=text)
    text = "port of the head, where it listens for workers"
    group.add_argument("--omni-master-port", "-omp", type=_master_port, metavar="PORT", help=text)
    text = "address of this host for the connection to the head and between stages; default: the one that leads to the head"
    group.add_argument("--omni-replica-address", "-ora", metavar="HOST", help=text)
    text = "replicas of its stage that this command starts; default: num_replicas of the deploy file"
    group.add_argument("--omni-dp-size-local", type=_count, metavar="N", help=text)
    text = "secret that all commands share, or @FILE; needed off this machine; default: OMNI_TOKEN, which `ps` does not show"
    group.add_argument("--omni-token", metavar="TOKEN", help=text)
    text = f"seconds of silence after which a worker is lost, default {HeadOptions.heartbeat_timeout_s:g}"
    group.add_argument(
        "--omni-heartbeat-timeout", type=_seconds, default=HeadOptions.heartbeat_timeout_s, metavar="S", help=text
    )
    text = f"seconds that a worker waits for a head that is not there, default {WorkerOptions.head_timeout_s:g}"
    group.add_argument("--omni-head-timeout", type=_seconds, default=WorkerOptions.head_timeout_s, metavar="S", help=text)
    group.add_argument("--replica-id", help=argparse.SUPPRESS)  # other servers have it; the head numbers replicas


def read_stage_flags(args: argparse.Namespace) -> StageFlags | None:
    """Return what the flags say; None where this command starts every stage itself.

    Raises:
        ConfigError: They do not go together (SB-03), an address cannot be used, or a token is missing (SB-10).
    """
    if args.replica_id is not None:
        logger.warning("--replica-id is ignored: the head numbers replicas")
    _check_misuse(args)
    if args.stage_id is None:
        return None
    if args.omni_token is not None and not args.omni_token.startswith("@"):
        logger.warning("everybody on this host can read --omni-token; set OMNI_TOKEN, or give --omni-token @FILE")
    token = read_token(args.omni_token)
    check_head(args.omni_master_address, token)
    if args.omni_replica_address is not None:
        check_own_address(args.omni_replica_address, "--omni-replica-address")
    return StageFlags(
        None if args.stage_id == NO_STAGE else args.stage_id,
        HeadAddress(args.omni_master_address, args.omni_master_port, token),
        args.headless,
        args.omni_replica_address or "",
        args.omni_dp_size_local,
        args.omni_heartbeat_timeout,
        args.omni_head_timeout,
    )


def _check_misuse(args: argparse.Namespace) -> None:
    given = {
        "--omni-master-address": args.omni_master_address,
        "--omni-master-port": args.omni_master_port,
        "--omni-replica-address": args.omni_replica_address,
        "--omni-dp-size-local": args.omni_dp_size_local,
        "--headless": args.headless or None,
    }
    if args.stage_id is None:
        for flag, value in given.items():
            if value is not None:
                raise ConfigError(f"{flag} is for commands that start one stage", where=flag, hint="give --stage-id too")
        return
    for flag in ("--omni-master-address", "--omni-master-port"):
        if given[flag] is None:
            raise ConfigError(f"--stage-id needs {flag}", where="--stage-id", hint="say where the head of the pipeline is")
    if args.stage_id == NO_STAGE and args.headless:
        raise ConfigError("a worker runs a stage", where="--headless", hint="give --stage-id a number")
    if args.stage_id == NO_STAGE and args.omni_dp_size_local is not None:
        raise ConfigError("this command runs no stage", where="--omni-dp-size-local", hint="give it to the stages' workers")
    if args.omni_replica_address is not None and not args.headless:
        hint = "leave it out: the head is reached at --omni-master-address"
        raise ConfigError("only workers have one", where="--omni-replica-address", hint=hint)
    if args.api_server_count != 1:
        reason = "a worker has no API server" if args.headless else "a head has one API server"
        raise ConfigError(reason, where="--api-server-count", hint="leave it out where --stage-id is given")


def worker_command(args: argparse.Namespace, model: str, head: HeadAddress) -> Callable[[int], str]:
    """Return a function that says how a worker for a stage is started, for hints."""

    def command(stage_id: int) -> str:
        words: list[Any] = ["omni", "serve", model, "--stage-id", stage_id, "--headless"]
        words += ["--omni-master-address", head.host, "--omni-master-port", head.port]
        for name in args.deploy_config or ():
            words += ["--deploy-config", name]
        text = shlex.join(map(str, words))
        return f"OMNI_TOKEN=... {text}" if head.token else text

    return command


def _stage_id(text: str) -> int | str:
    if text == NO_STAGE:
        return text
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither the id of a stage nor `{NO_STAGE}`")
    return int(text)


def _master_port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port (1 to 65535)")
    return port


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} must be more than 0 seconds")
    return seconds
