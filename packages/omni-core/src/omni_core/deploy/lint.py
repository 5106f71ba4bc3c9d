"""Check a deployment without a GPU: what is wrong, what has no effect, and what will not do what it seems to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omni_core.deploy.files import Bundle, read_bundled, read_deployment
from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.tree import Node
from omni_core.errors import OmniError
from omni_core.model_info import ModelInfo
from omni_core.plugins import PluginManager
from omni_core.stage import ResolvedPipeline


@dataclass(frozen=True)
class Finding:
    """One thing that the user should know."""

    level: Literal["error", "warning"]
    rule: str
    """Name of the check."""
    text: str
    where: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Subject:
    """What the checks look at."""

    resolved: ResolvedPipeline
    files: Node
    """What the deploy files say together, platform sections included."""
    platforms: frozenset[str]
    """Names of platforms that plugins offer here."""


Check = Callable[[Subject], Iterable[Finding]]


def lint_deployment(
    model: ModelInfo,
    manager: PluginManager,
    *,
    deploy_config: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    stage_overrides: Mapping[Any, Any] | str | None = None,
    platform: str | None = None,
) -> list[Finding]:
    """Return everything that is to be said about a deployment; see `resolve_deployment` for the arguments.

    What stops a start is one finding of the level error, and then nothing else can be checked.
    """
    from omni_core.deploy.lint_checks import CHECKS

    try:
        resolved = resolve_deployment(
            model,
            deploy_config=list(deploy_config) or None,
            flags=flags,
            stage_overrides=stage_overrides,
            manager=manager,
            platform=platform,
        )
        subject = Subject(resolved, _read(resolved, deploy_config, manager), _platforms(manager))
    except OmniError as error:
        return [as_finding(error)]
    found = [finding for check in CHECKS for finding in check(subject)]
    return list(dict.fromkeys(found))


def as_finding(error: OmniError) -> Finding:
    """Return an error that stops a start as a finding."""
    return Finding("error", "cannot start", error.message, error.where, error.hint)


def _read(resolved: ResolvedPipeline, names: Sequence[str], manager: PluginManager) -> Node:
    bundle = Bundle(manager)
    name = resolved.config.default_deploy_config_name
    if names or name is None:
        return read_deployment(list(names), bundle).tree
    return read_bundled(name, bundle, pipeline=resolved.config.model_type).tree


def _platforms(manager: PluginManager) -> frozenset[str]:
    return frozenset(entry.name for _, entries in manager.collect("omni_platforms") for entry in entries)
