"""Validate a tree with a pydantic model and say where each fault was written."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from omni_core.deploy.tree import Key, Node, shown
from omni_core.errors import ConfigError

_YAML_1_1 = {"yes", "no", "on", "off", "y", "n"}
"""What older YAML took for true and false."""


def check_types(model: type[BaseModel], tree: Node, *, name: str = "") -> None:
    """Check the types and ranges of a tree's values.

    Args:
        model: What the tree must fit.
        tree: The values.
        name: What stands in front of the field in messages, such as `stages.0.`.

    Raises:
        ConfigError: Values do not fit; the message has one line for each, with its place.
    """
    try:
        model.model_validate(tree.plain())
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [_describe(fault, tree, name) for fault in found]
    else:
        return
    faults = list(dict.fromkeys(faults))
    place, field, text = faults[0]
    rest = "".join(f"\n  {place}: {text}" for place, _, text in faults[1:])
    raise ConfigError(f"{text}{rest}", where=place, hint=_hint(found[0]), param=field)


def _hint(fault: Any) -> str:
    if fault["type"] == "bool_type" and str(fault["input"]).lower() in _YAML_1_1:
        return "write true or false; YAML 1.2 takes this for text"
    return "correct the value"


def _describe(fault: Any, tree: Node, name: str) -> tuple[str, str, str]:
    path = _path(fault, tree)
    node = tree.find(path)
    field = name + ".".join(map(str, path))
    got = shown(node.plain() if fault["type"] != "missing" else None)
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return node.place, field, f"{field}: {message} (got {got})"


def _path(fault: Any, tree: Node) -> list[Key]:
    """Return the path of the value that is wrong."""
    found = tree.existing(fault["loc"])  # pydantic names members of unions too
    if (argument := fault.get("ctx", {}).get("argument")) is None:
        return found
    # An argument of the engine, which the model has under `engine_extras` even if it was written among the fields.
    inside = [*found, argument]
    return inside if tree.existing(inside) == inside else [*fault["loc"][:-1], argument]
