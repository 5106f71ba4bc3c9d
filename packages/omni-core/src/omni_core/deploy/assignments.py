"""`--set PATH=VALUE`: single values on the command line, read and checked as a deploy file's.

`stages.N.FIELD` is as strong as an override of stage N, only `--stage-overrides` is stronger. Everything else is as strong as a
flag, only the flag of that name is stronger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_core.deploy.check import check_types
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES
from omni_core.deploy.keys import PIPELINE_WIDE, check_document_keys, check_stage_keys, fold_extras
from omni_core.deploy.merge import merge
from omni_core.deploy.reader import parse_value
from omni_core.deploy.schema import DeployConfig, StageDeployConfig
from omni_core.deploy.tree import Key, Node, empty, from_plain
from omni_core.errors import ConfigError
from omni_core.stage import Source
from omni_core.suggest import did_you_mean

OPTION = "--set"
_EXAMPLE = "write PATH=VALUE, such as stages.1.gpu_memory_utilization=0.5"
_ELSEWHERE = {
    "base_config": "name the lower file with --deploy-config, before the other one",
    "platforms": "set the value itself: it is for the platform that runs",
}
_FOR_STAGES = frozenset({*PIPELINE_WIDE, "model_runner"})
"""Top-level fields that are given to every stage, as their flags are."""


@dataclass
class Assignments:
    """What `--set` says, sorted by what it is about."""

    top: Node
    """Top-level fields."""
    flags: dict[str, Node] = field(default_factory=dict)
    """Fields that every stage which owns them gets."""
    stages: dict[int, Node] = field(default_factory=dict)
    """Fields of single stages."""


def parse_assignments(given: Sequence[str] | Mapping[str, Any] | str | None) -> Assignments:
    """Return assignments, later ones on top of earlier ones.

    Args:
        given: `PATH=VALUE` texts, VALUE as in a deploy file, tags included; or values by path.

    Raises:
        ConfigError: One has no `=`, its path is not that of a field, or its value does not fit.
    """
    found = Assignments(empty(Source("flag", OPTION)))
    for path, node in _split(given):
        if path[0] == "stages":
            _assign_to_stage(path, node, found)
        else:
            _assign(path, node, found)
    check_types(DeployConfig, check_document_keys(found.top))
    check_types(DeployConfig, Node(dict(found.flags), found.top.source))
    for stage_id, tree in found.stages.items():
        check_stage_keys(tree)
        check_types(StageDeployConfig, tree, name=f"stages.{stage_id}.")
        found.stages[stage_id] = fold_extras(tree)
    return found


def _split(given: Sequence[str] | Mapping[str, Any] | str | None) -> list[tuple[list[str], Node]]:
    if isinstance(given, Mapping):
        return [(_path(str(name)), from_plain(value, Source("flag", f"{OPTION} {name}"))) for name, value in given.items()]
    found = []
    for text in [given] if isinstance(given, str) else given or ():
        name, equals, value = str(text).partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(f"{text!r} has no `=`", where=OPTION, hint=_EXAMPLE)
        found.append((_path(name), parse_value(value, f"{OPTION} {name}")))
    return found


def _path(name: str) -> list[str]:
    parts = name.split(".")
    if not all(parts):
        raise ConfigError(f"{name!r} is no path of a field", where=OPTION, hint=_EXAMPLE)
    return parts


def _assign_to_stage(path: list[str], node: Node, found: Assignments) -> None:
    place = node.place
    if len(path) == 1 or not (path[1].isascii() and path[1].isdecimal()):
        raise ConfigError("`stages` is followed by the id of a stage", where=place, hint=_EXAMPLE)
    if len(path) == 2 and not node.is_mapping:
        raise ConfigError(f"stage {path[1]} is a mapping of fields", where=place, hint=_EXAMPLE)
    node = _inside(path[2:], node).with_layer("stage override")
    if "stage_id" in node.value:
        raise ConfigError(f"stage {path[1]} cannot be given another stage_id", where=place, hint="remove it")
    stage_id = int(path[1])
    below = found.stages.get(stage_id)
    found.stages[stage_id] = node if below is None else merge(below, node)


def _assign(path: list[str], node: Node, found: Assignments) -> None:
    name, place = path[0], node.place
    if name in _ELSEWHERE:
        raise ConfigError(f"{name} cannot be set here", where=place, hint=_ELSEWHERE[name])
    if name not in DeployConfig.model_fields:
        if name in StageDeployConfig.model_fields or name in ENGINE_ARG_NAMES:
            raise ConfigError(f"{name} is a field of a stage", where=place, hint=f"write stages.N.{'.'.join(path)}=...")
        hint = did_you_mean(name, DeployConfig.model_fields) or "see docs/deploy.md for the fields"
        raise ConfigError(f"{name} is not one of the top-level fields", where=place, hint=hint)
    tree = _inside(path, node).with_layer("flag")
    if name in _FOR_STAGES:
        below = found.flags.get(name)
        found.flags[name] = tree.value[name] if below is None else merge(below, tree.value[name])
    else:
        found.top = merge(found.top, tree)


def _inside(path: Sequence[Key], node: Node) -> Node:
    """Return a mapping that holds a node at a path."""
    for key in reversed(path):
        node = Node({key: Node(node.value, node.source, node.place, node.lost, node.tag)}, node.source, node.place)
    return node
