"""`omni config freeze`: one flat deploy file that resolves to the same deployment again."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from omni_core.commands.config.arguments import MODEL_HELP, add_platform, resolve_model
from omni_core.commands.output import write
from omni_core.deploy.flags import add_deploy_flags
from omni_core.deploy.freeze import freeze
from omni_core.deploy.redact import HIDDEN, redact
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager
from omni_core.stage import ResolvedPipeline

logger = logging.getLogger(__name__)

HELP = "Write the resolved configuration as one flat, reproducible deploy file."
DESCRIPTION = (
    "Write a deploy file without base_config and platform sections in which every value is written out. It resolves to the "
    "same deployment, with the same hash, on the same platform; this is checked before anything is written."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="Write to this file instead of stdout.")
    add_platform(parser)
    add_deploy_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    manager = plugin_manager()
    model, resolved = resolve_model(args.model, args, manager)
    text = freeze(resolved, model, manager)
    _warn_of_secrets(resolved)
    if args.output is None:
        write(text.rstrip())
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{args.output} cannot be written: {error.strerror}", where="--output", hint="correct it") from error
    write(f"wrote {args.output}, config hash {resolved.config_hash}")
    return 0


def _warn_of_secrets(resolved: ResolvedPipeline) -> None:
    """Say which environment variables are in the file as they are."""
    for stage in resolved.stages:
        for name, value in stage.env.items():
            if redact(name, value) == HIDDEN:
                logger.warning("stage %s: the file has the value of env.%s; write ${%s} there instead", stage.name, name, name)
