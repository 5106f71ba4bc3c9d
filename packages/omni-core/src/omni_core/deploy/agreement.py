"""What the commands of one pipeline must agree on when each starts a stage of its own (SB-04), in a form that can be compared.

Flags and overrides are left out: in such a command they are about its own stage (SB-05). So are places of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_core.deploy.files import Bundle, read_bundled, read_deployment
from omni_core.plugins import PluginManager
from omni_core.stage import ResolvedPipeline

_CHECKPOINT = ("config.json", "model_index.json")
_SHOWN = 4


def agreement(resolved: ResolvedPipeline, deploy_config: Sequence[str], manager: PluginManager) -> dict[str, str]:
    """Return the facts by name, each with a digest of its value; values themselves may be secret.

    Args:
        resolved: The deployment of this command.
        deploy_config: The deploy files that the user named; empty where the pipeline's own is used.
        manager: The plugins.
    """
    facts: dict[str, Any] = {"pipeline": resolved.config.model_type, "async_chunk": resolved.async_chunk}
    facts["session_mode"] = resolved.values.get("session_mode")
    for name in _CHECKPOINT:
        path = Path(resolved.model) / name
        if path.is_file():
            facts[f"model.{name}"] = json.loads(path.read_text())
    for stage in resolved.stages:
        for edge in stage.outputs:
            place = f"edge.{edge.from_stage}-{edge.to_stage}"
            facts |= {f"{place}.connector": edge.target, f"{place}.async_chunk": edge.async_chunk}
            facts |= {f"{place}.{key}": value for key, value in {**edge.options, **edge.stream}.items()}
    for key, value in _flat("deploy file", _deployment(resolved, deploy_config, manager)):
        facts[key] = value
    return {name: _digest(value) for name, value in facts.items() if value is not None}


def disagreement(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return the names of facts that differ, `a, b and 3 more`; empty where all agree."""
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    if len(names) > _SHOWN:
        return f"{', '.join(names[: _SHOWN - 1])} and {len(names) - _SHOWN + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _deployment(resolved: ResolvedPipeline, deploy_config: Sequence[str], manager: PluginManager) -> Any:
    bundle = Bundle(manager)
    default = resolved.config.default_deploy_config_name
    if deploy_config:
        return read_deployment(deploy_config, bundle).tree.plain()
    return read_bundled(default, bundle, pipeline=resolved.config.model_type).tree.plain() if default else {}


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the values inside a value with their paths; lists of stages by stage id."""
    if isinstance(value, Mapping):
        return [item for key, inner in value.items() for item in _flat(f"{name}.{key}", inner)]
    return [(name, value)]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
