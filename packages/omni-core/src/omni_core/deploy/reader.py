"""Read a deploy file: YAML 1.2 scalars, every value with its place, duplicate keys and odd tags refused."""

from __future__ import annotations

import os
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from omni_core.deploy.tree import Key, Node
from omni_core.errors import ConfigError
from omni_core.stage import Source

_MAX_NODES = 100_000
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Compose YAML with the scalars of YAML 1.2: `1e-3` is a number, `on` and `yes` are strings, `010` is ten."""


_Loader.yaml_implicit_resolvers = {}
_FORMS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
)
for _name, _form, _first in _FORMS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_form})$"), _first)

_ENV = re.compile(r"\$\$\{|\$\{(?:oc\.env:)?([A-Za-z_][A-Za-z0-9_]*)(?:,([^}]*))?\}")


def read_deploy_file(file: Traversable | Path, label: str) -> Node:
    """Return the content of a deploy file as a tree; an empty file is an empty mapping.

    `${NAME}` and `${oc.env:NAME}` in a string become that environment variable (DY-09), `${oc.env:NAME,VALUE}` falls back to
    VALUE, and `$${` stands for `${`.

    Args:
        file: The file.
        label: What messages call it.

    Raises:
        ConfigError: The file cannot be read or is not valid; `where` is `label:line:column`.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no deploy file {label}", hint="correct the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the deploy file {label} cannot be read: {error}", hint="check the file") from error
    return parse_deploy_text(text, label)


def parse_deploy_text(text: str, label: str) -> Node:
    """Return the content of a deploy file given as text; see `read_deploy_file`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        raise ConfigError(
            f"this is not valid YAML: {error.problem or error.context}", where=where, hint="correct it"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not valid YAML: {error}", where=label, hint="correct it") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _TAG + "null"):
        return Node({}, Source("overlay", f"{label}:1:1"))
    tree = _Builder(label).build(root)
    if not tree.is_mapping:
        raise ConfigError("a deploy file is a mapping of fields", where=tree.place, hint="write `stages:` and so on")
    return tree


class _Builder:
    """Turn composed YAML into a tree."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._count = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, key_place: str = "") -> Node:
        place = self._place(node)
        self._count += 1
        if self._count > _MAX_NODES:
            raise ConfigError(f"the file has more than {_MAX_NODES} values", where=place, hint="check its aliases")
        source = Source("overlay", place)
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node, place), source, key_place)
        if id(node) in self._open:
            raise ConfigError("an alias contains itself", where=place, hint="write the value out")
        if node.tag not in {_TAG + "map", _TAG + "seq"}:
            raise ConfigError(f"the tag {node.tag!r} is not allowed", where=place, hint="remove it")
        self._open.add(id(node))
        value = self._mapping(node) if isinstance(node, yaml.MappingNode) else [self.build(item) for item in node.value]
        self._open.discard(id(node))
        return Node(value, source, key_place)

    def _mapping(self, node: yaml.MappingNode) -> dict[Key, Node]:
        own: dict[Key, Node] = {}
        merged: dict[Key, Node] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if key_node.tag == _TAG + "merge":
                merged = {**self._merged(value_node), **merged}
                continue
            key = self._key(key_node, place)
            if key in own:
                raise ConfigError(
                    f"the key {key!r} is here twice, first at {own[key].key_place}", where=place, hint="keep one of them"
                )
            own[key] = self.build(value_node, place)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> dict[Key, Node]:
        parts = list(node.value) if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[Key, Node] = {}
        for part in reversed(parts):
            built = self.build(part)
            if not built.is_mapping:
                raise ConfigError("`<<` takes a mapping", where=built.place, hint="name an anchor of a mapping")
            found.update(built.value)
        return found

    def _key(self, node: yaml.Node, place: str) -> Key:
        value = self._scalar(node, place, expand=False) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ConfigError("a key must be a name or a number", where=place, hint="quote it if it is a name")
        return value

    def _scalar(self, node: yaml.ScalarNode, place: str, *, expand: bool = True) -> Any:
        tag, text = node.tag, node.value
        if expand and tag == _TAG + "str" and "${" in text:
            text = _expand(text, place)
            if node.style is None:
                tag = str(_Loader("").resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
        if tag in {_TAG + "str", _TAG + "merge"}:
            return text
        convert = _SCALARS.get(tag)
        if convert is None:
            raise ConfigError(f"the tag {tag!r} is not allowed", where=place, hint="remove it")
        try:
            return convert(text)
        except ValueError:
            kind = tag.removeprefix(_TAG)
            raise ConfigError(f"{text!r} is no {kind}", where=place, hint="correct it") from None

    def _place(self, node: yaml.Node) -> str:
        mark = node.start_mark
        return f"{self._label}:{mark.line + 1}:{mark.column + 1}"


def _expand(text: str, place: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$${":
            return "${"
        name, default = match.group(1), match.group(2)
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(
                f"the environment variable {name} is not set", where=place, hint=f"set it, or write ${{oc.env:{name},VALUE}}"
            )
        return found

    return _ENV.sub(value, text)


def _integer(text: str) -> int:
    for prefix, base in (("0o", 8), ("0x", 16)):
        if text.startswith(prefix):
            return int(text, base)
    return int(text)


def _float(text: str) -> float:
    return float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


_SCALARS = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": _boolean,
    _TAG + "int": _integer,
    _TAG + "float": _float,
}
