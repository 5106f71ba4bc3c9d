"""The arguments of `omni serve` that are the server's own, and the settings they make; core adds those of the deployment."""

from __future__ import annotations

import argparse
import os

from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.engine.profiling import PROFILE_DIR_ENV
from omni_core.errors import ConfigError
from omni_core.observe.endpoint import TRACES_ENDPOINT_ENV
from omni_server.adapters import parse_lora_modules
from omni_server.context import ServerSettings
from omni_server.frontend_flags import add_frontend_flags
from omni_server.stage_flags import add_stage_flags
from omni_server.voice_settings import add_voice_flags, check_voices_dir

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server's own arguments, in groups."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a checkpoint's folder or its name on Hugging Face")
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same as a flag")
    parser.add_argument("--omni", action="store_true", help=argparse.SUPPRESS)  # other servers need it
    _add_listening_flags(parser.add_argument_group("listening"))
    _add_api_flags(parser.add_argument_group("API"))
    _add_limit_flags(parser.add_argument_group("limits and media"))
    add_voice_flags(parser.add_argument_group("uploaded voices"))
    _add_engine_flags(parser.add_argument_group("stages and requests"))
    add_stage_flags(parser.add_argument_group("stages on several hosts"))
    add_frontend_flags(parser.add_argument_group("several server processes"))
    _add_observing_flags(parser.add_argument_group("observing"))


def model_of(args: argparse.Namespace) -> str:
    """Return the model that was given as an argument or as a flag.

    Raises:
        ConfigError: None was given, or two different ones.
    """
    given = {name for name in (args.model, args.model_flag) if name}
    if len(given) != 1:
        message = "two models are given" if given else "no model is given"
        raise ConfigError(message, where="omni serve", hint="write `omni serve MODEL`")
    return str(given.pop())


def make_settings(args: argparse.Namespace) -> ServerSettings:
    """Return the server's settings from its arguments.

    Raises:
        ConfigError: A value cannot be used.
    """
    folder = args.allowed_local_media_path
    if folder is not None and not os.path.isdir(folder):
        raise ConfigError(f"{folder!r} is not a folder", where="--allowed-local-media-path", hint="name a folder that exists")
    if any(not key for key in args.api_key):
        raise ConfigError("a key is empty", where="--api-key", hint="give each key a text, or leave the flag out")
    if args.enable_control_routes and not args.api_key and not args.uds and args.host not in _LOOPBACK:
        message = f"anybody who reaches {args.host} could change the weights"
        raise ConfigError(message, where="--enable-control-routes", hint="set --api-key, or listen on 127.0.0.1")
    domains = {part.strip().lower() for item in args.allowed_media_domains for part in item.split(",")}
    for domain in domains:
        if "/" in domain or "*" in domain:
            raise ConfigError(f"{domain!r} is not a host", where="--allowed-media-domains", hint="write it like example.com")
    return ServerSettings(
        model_of(args),
        served_model_name=tuple(args.served_model_name),
        api_key=tuple(args.api_key),
        allowed_media_domains=frozenset(domains - {""}),
        allowed_local_media_path=folder,
        allowed_origins=tuple(args.allowed_origins),
        max_body_bytes=args.max_body_bytes,
        max_media_bytes=args.max_media_bytes,
        media_timeout=args.media_timeout,
        request_timeout=args.request_timeout,
        enable_control_routes=args.enable_control_routes,
        lora_modules=parse_lora_modules(args.lora_modules),
        reference_cache_entries=args.reference_cache_entries,
        reference_cache_bytes=args.reference_cache_bytes,
        voices_dir=check_voices_dir(args.voices_dir),
        max_voices=args.max_voices,
        voice_policy=args.voice_policy,
        profile_dir=args.profile_dir,
    )


def _add_listening_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address; 0.0.0.0 is every network, default 127.0.0.1")
    group.add_argument("--port", type=_port, default=8000, help="port; 0 takes a free one, default 8000")
    group.add_argument("--uds", metavar="PATH", help="a Unix socket instead of host and port")
    group.add_argument("--root-path", default="", help="path prefix that a proxy in front takes away")
    levels = ["critical", "error", "warning", "info", "debug"]
    group.add_argument("--uvicorn-log-level", choices=levels, default="warning", help="`info` logs each request")
    text = "seconds that running requests have to end after SIGTERM, default 30"
    group.add_argument("--shutdown-timeout", type=_seconds, default=30.0, metavar="S", help=text)


def _add_api_flags(group: argparse._ArgumentGroup) -> None:
    text = "names that requests may use as `model`; default: MODEL and its last part"
    group.add_argument("--served-model-name", nargs="+", action="extend", default=[], metavar="NAME", help=text)
    text = "a key that requests must bring as `Authorization: Bearer KEY`; repeatable"
    group.add_argument("--api-key", action="append", default=[], metavar="KEY", help=text)
    text = "adapters that requests may use as `model`, as NAME=PATH; stage 0 needs enable_lora"
    group.add_argument("--lora-modules", nargs="+", action="extend", default=[], metavar="NAME=PATH", help=text)
    text = "answer the routes that pause the engine, put it to sleep and change its weights; needs --api-key off this machine"
    group.add_argument("--enable-control-routes", action="store_true", help=text)
    text = "origins that browsers may call from (CORS); `*` is any, default none"
    group.add_argument("--allowed-origins", nargs="+", action="extend", default=[], metavar="ORIGIN", help=text)


def _add_limit_flags(group: argparse._ArgumentGroup) -> None:
    limits = ServerSettings("")
    text = "hosts that audio, images and video may be fetched from, redirects included; default none"
    group.add_argument("--allowed-media-domains", nargs="+", action="extend", default=[], metavar="HOST", help=text)
    text = "a folder that audio, images and video may be read from; default none"
    group.add_argument("--allowed-local-media-path", metavar="DIR", help=text)
    text = f"bytes of a request's body, default {limits.max_body_bytes}"
    group.add_argument("--max-body-bytes", type=_positive, default=limits.max_body_bytes, metavar="N", help=text)
    text = f"bytes of one such file, default {limits.max_media_bytes}"
    group.add_argument("--max-media-bytes", type=_positive, default=limits.max_media_bytes, metavar="N", help=text)
    text = f"seconds to fetch one such file, default {limits.media_timeout:g}"
    group.add_argument("--media-timeout", type=_seconds, default=limits.media_timeout, metavar="S", help=text)
    text = (
        f"clips of reference audio that are kept for requests to come, default {limits.reference_cache_entries}; 0 keeps none"
    )
    group.add_argument(
        "--reference-cache-entries", type=_not_negative, default=limits.reference_cache_entries, metavar="N", help=text
    )
    text = f"bytes of the samples of these clips, default {limits.reference_cache_bytes}"
    group.add_argument(
        "--reference-cache-bytes", type=_not_negative, default=limits.reference_cache_bytes, metavar="N", help=text
    )
    text = f"seconds until a request fails, default {limits.request_timeout:g}"
    group.add_argument("--request-timeout", type=_seconds, default=limits.request_timeout, metavar="S", help=text)


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    engine = EngineOptions()
    text = f"seconds that one stage may take to start, default {engine.stage_init_timeout_s:g}"
    group.add_argument("--stage-init-timeout", type=_seconds, default=engine.stage_init_timeout_s, metavar="S", help=text)
    text = f"seconds that the whole start may take, default {engine.init_timeout_s:g}"
    group.add_argument("--init-timeout", type=_seconds, default=engine.init_timeout_s, metavar="S", help=text)
    text = f"seconds without a sign of life after which a stage is killed, default {engine.stage_heartbeat_timeout_s:g}"
    group.add_argument(
        "--stage-heartbeat-timeout", type=_seconds, default=engine.stage_heartbeat_timeout_s, metavar="S", help=text
    )
    text = f"how a request's replica is chosen, default {engine.lb_policy}"
    group.add_argument(
        "--omni-lb-policy", type=LbPolicy, choices=list(LbPolicy), default=engine.lb_policy, metavar="NAME", help=text
    )
    text = f"requests that may wait for the first stage to have room, default {engine.max_queued_requests}; others get 429"
    group.add_argument("--max-queued-requests", type=_not_negative, default=engine.max_queued_requests, metavar="N", help=text)
    text = "seconds that a request may wait for room before it gets 429; default: as long as --request-timeout allows"
    group.add_argument("--max-queue-time", type=_seconds, metavar="S", help=text)
    text = f"seconds without progress after which a running request fails; 0 is never, default {engine.stall_timeout_s:g}"
    group.add_argument("--stall-timeout", type=_seconds, default=engine.stall_timeout_s, metavar="S", help=text)


def _add_observing_flags(group: argparse._ArgumentGroup) -> None:
    text = "log a line of statistics every so many seconds, 10 where no number is given; default none"
    group.add_argument("--log-stats", nargs="?", type=_interval, const=10.0, metavar="SECONDS", help=text)
    text = f"where OpenTelemetry traces are sent; default: {TRACES_ENDPOINT_ENV}, and without one nothing is traced"
    group.add_argument("--otlp-traces-endpoint", metavar="URL", help=text)
    text = "a folder for traces of PyTorch's profiler, which opens POST /start_profile and /stop_profile; default none"
    group.add_argument("--profile-dir", metavar="DIR", help=text)


def set_environment(args: argparse.Namespace) -> None:
    """Put into the environment what stages read there, before any of them starts."""
    if args.otlp_traces_endpoint:
        os.environ[TRACES_ENDPOINT_ENV] = args.otlp_traces_endpoint
    if args.profile_dir is not None:
        os.environ[PROFILE_DIR_ENV] = os.path.abspath(args.profile_dir)


def make_engine_options(args: argparse.Namespace) -> EngineOptions:
    """Return the engine's deadlines and limits from the server's arguments."""
    return EngineOptions(
        stage_init_timeout_s=args.stage_init_timeout,
        init_timeout_s=args.init_timeout,
        stage_heartbeat_timeout_s=args.stage_heartbeat_timeout,
        lb_policy=args.omni_lb_policy,
        max_queued_requests=args.max_queued_requests,
        max_queue_time_s=args.max_queue_time,
        stall_timeout_s=args.stall_timeout or None,
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port (0 to 65535)")
    return port


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return number


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0.1 seconds")
    return seconds


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds")
    return seconds
