"""Arguments that several actions of `omni config` have, and the deployment that they describe."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.stand_in import stand_in
from omni_core.model_info import ModelInfo, read_model_info
from omni_core.plugins import PluginManager
from omni_core.stage import ResolvedPipeline

logger = logging.getLogger(__name__)

MODEL_HELP = "Checkpoint folder, or name of a model on the Hugging Face Hub."


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="Write JSON.")


def add_platform(parser: argparse.ArgumentParser) -> None:
    """Add `--platform`."""
    parser.add_argument("--platform", metavar="NAME", help="Resolve for this platform instead of the one of this machine.")


def add_deployment(parser: argparse.ArgumentParser) -> None:
    """Add a model and the flags of a deployment."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_json(parser)
    add_platform(parser)
    add_deploy_flags(parser)


def read_model(reference: str, flags: dict[str, Any]) -> ModelInfo:
    """Return the facts of a model, whose `revision` is taken out of the flags."""
    return read_model_info(reference, revision=flags.pop("revision", None), weights=False)


def resolve_arguments(args: argparse.Namespace, manager: PluginManager) -> ResolvedPipeline:
    """Return the deployment that the arguments of `add_deployment` describe, and log what there is to warn of.

    Raises:
        OmniError: It cannot start.
    """
    return resolve_model(args.model, args, manager)[1]


def resolve_model(reference: str, args: argparse.Namespace, manager: PluginManager) -> tuple[ModelInfo, ResolvedPipeline]:
    """Return a model and its deployment with the flags of `add_deploy_flags`, and log what there is to warn of.

    Raises:
        OmniError: It cannot start.
    """
    flags = typed_flags(args)
    model = read_model(reference, flags)
    resolved = resolve_deployment(
        model,
        deploy_config=flags.pop("deploy_config", None),
        stage_overrides=flags.pop("stage_overrides", None),
        flags=flags,
        manager=manager,
        platform=args.platform,
    )
    for text in resolved.warnings:
        logger.warning("%s", text)
    return model, resolved


def resolve_file(
    name: str, manager: PluginManager, *, model: ModelInfo | None = None, platform: str | None
) -> ResolvedPipeline:
    """Return the deployment of one deploy file for a model, or without one for the pipeline that the file is for.

    Raises:
        OmniError: It cannot start.
    """
    info = model or stand_in([name], manager)
    return resolve_deployment(info, deploy_config=[name], manager=manager, platform=platform)
