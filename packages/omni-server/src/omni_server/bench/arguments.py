"""The arguments of `omni bench serve`, and the plan that they make."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omni_core.errors import ConfigError
from omni_server.bench.plan import MAX_REQUESTS, BenchPlan, Bounds, Load
from omni_server.bench.prompts import BUILT_IN, read_prompts

DEFAULT_REQUESTS = 100
MAX_CONCURRENCY = 10_000
MAX_SECONDS = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, in groups."""
    parser.add_argument("url", metavar="URL", help="the server, like http://127.0.0.1:8000")
    parser.add_argument("second_url", nargs="?", metavar="URL2", help="a second server, compared in the same run")
    parser.add_argument("--endpoint", choices=["speech"], default="speech", help="what is asked for; default speech")
    load = parser.add_argument_group("load").add_mutually_exclusive_group()
    text = "closed loop: this many requests at a time; several are levels, one after another; default 1"
    load.add_argument("--concurrency", type=_list_of(_concurrency), metavar="N[,N...]", help=text)
    text = "open loop: Poisson arrivals, this many a second, that wait for no answer"
    load.add_argument("--rate", type=_list_of(_positive), metavar="R[,R...]", help=text)
    bounds = parser.add_argument_group("bounds of each level: whichever comes first")
    text = f"requests to each server; default {DEFAULT_REQUESTS} if there is no --duration"
    bounds.add_argument("--requests", type=_count, metavar="N", help=text)
    bounds.add_argument("--duration", type=_positive, metavar="S", help="seconds in which requests may start")
    text = "requests to each server before the first level, not measured; default 4"
    bounds.add_argument("--warmup", type=_count_or_none, default=4, metavar="N", help=text)
    bounds.add_argument("--timeout", type=_positive, default=300.0, metavar="S", help="seconds for one request; default 300")
    _add_request_flags(parser.add_argument_group("requests"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write everything, every request too, as JSON")
    text = "write a plot of latency against load; needs the extra omni-server[bench]"
    output.add_argument("--plot", type=Path, metavar="FILE.png", help=text)


def _add_request_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt on each line; default a built-in list")
    text = "how answers come: `audio` streams PCM (default), `sse` events, `whole` one file"
    group.add_argument("--delivery", choices=["audio", "sse", "whole"], default="audio", help=text)
    group.add_argument("--body", type=_object, default={}, metavar="JSON", help="fields of each request, over all others")
    group.add_argument("--api-key", type=_key, metavar="KEY", help="sent as `Authorization: Bearer KEY`")
    group.add_argument("--seed", type=_count_or_none, default=0, help="of arrivals and order; default 0")
    text = "Hz of PCM from servers that do not say it in X-Omni-Sample-Rate; default 24000"
    group.add_argument("--sample-rate", type=_count, default=24000, metavar="HZ", help=text)
    text = "level from which audio is heard, in dB of full scale; default -40"
    group.add_argument("--audible-level", type=_level, default=-40.0, metavar="DB", help=text)


def make_plan(args: argparse.Namespace) -> BenchPlan:
    """Return the plan that the arguments describe.

    Raises:
        ConfigError: A URL, a prompt file or an output file cannot be used.
    """
    urls = tuple(base_url(url) for url in (args.url, args.second_url) if url is not None)
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"{path} cannot be written", where=flag, hint="name a file in a folder that exists")
    if args.rate is not None:
        loads = tuple(Load("open", rate) for rate in args.rate)
    else:
        loads = tuple(Load("closed", clients) for clients in args.concurrency or [1])
    requests = DEFAULT_REQUESTS if args.requests is None and args.duration is None else args.requests
    return BenchPlan(
        urls=urls,
        loads=loads,
        bounds=Bounds(requests, args.duration),
        prompts=BUILT_IN if args.prompts is None else read_prompts(args.prompts),
        timeout_s=args.timeout,
        warmup=args.warmup,
        seed=args.seed,
        headers={"Authorization": f"Bearer {args.api_key}"} if args.api_key else {},
    )


def base_url(text: str) -> str:
    """Return the URL of a server; the end `/v1`, which OpenAI's clients want, is taken off.

    Raises:
        ConfigError: It is not a URL of a server.
    """
    import httpx

    hint = "write it like http://127.0.0.1:8000"
    try:
        httpx.URL(text)  # it refuses some that urlsplit takes
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(f"{text!r} is not a URL: {error}", where="URL", hint=hint) from error
    if not usable or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"{text!r} is not the URL of a server", where="URL", hint=hint)
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _list_of(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [item(part) for part in text.split(",")]

    return parse


def _concurrency(text: str) -> int:
    return _whole(text, 1, MAX_CONCURRENCY)


def _count(text: str) -> int:
    return _whole(text, 1, MAX_REQUESTS)


def _count_or_none(text: str) -> int:
    return _whole(text, 0, MAX_REQUESTS)


def _whole(text: str, least: int, most: int) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)


def _positive(text: str) -> float:
    number = _float(text)
    if not 0 < number <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to {MAX_SECONDS:g}")
    return number


def _level(text: str) -> float:
    number = _float(text)
    if not -200 <= number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a level from -200 to 0 dB")
    return number


def _key(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable():
        raise argparse.ArgumentTypeError("a key is printable ASCII")  # the key itself is not shown
    return text


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('must be a JSON object, like \'{"voice": "NAME"}\'')
    return value
