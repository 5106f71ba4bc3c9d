"""Read a deploy file: YAML 1.2 scalars, every value with its place, duplicate keys and odd tags refused.

Nothing that a file holds can take long or much: its size, its depth and the number of its values are limited.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from omni_core.deploy.tree import MAX_DEPTH, Key, Node, shown
from omni_core.errors import ConfigError
from omni_core.stage import Source

MAX_BYTES = 1 << 20
"""Largest deploy file; the largest one that anybody ships has a few KiB."""
MAX_KEY = 256
"""Most characters of a key; messages repeat keys in full."""
MAX_VALUES = 100_000
"""Most values of a file, aliases written out."""
_TAG = "tag:yaml.org,2002:"
_TAGS = {"!unset": "unset", "!append": "append", "!replace": "replace"}
_BYTE_ORDER_MARK = "\ufeff"
_UNREADABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from yaml import SafeLoader as _BaseLoader
else:
    _BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is twenty times as fast, where PyYAML has it


class _Loader(_BaseLoader):
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
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no deploy file {label}", hint="correct the path") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"this is not text in UTF-8: {error.reason}", where=f"{label}:{line}", hint="save the file as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(f"the deploy file {label} cannot be read: {error}", hint="check the file") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"this is larger than {MAX_BYTES >> 20} MiB", where=label, hint="name a deploy file")
    return parse_deploy_text(text, label)


def parse_deploy_text(text: str, label: str) -> Node:
    """Return the content of a deploy file given as text; see `read_deploy_file`."""
    root = _compose(text, label)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _TAG + "null"):
        return Node({}, Source("overlay", f"{label}:1:1"))
    tree = _Builder(label).build(root)
    if not tree.is_mapping or tree.tag:
        raise ConfigError("a deploy file is a mapping of fields", where=tree.place, hint="write `stages:` and so on")
    return tree


def parse_value(text: str, label: str) -> Node:
    """Return one value, written as in a deploy file; `label` is the place of all of it."""
    try:
        root = _compose(text, label)
    except ConfigError as error:
        raise ConfigError(error.message, where=label, hint=error.hint) from error
    return Node(None, Source("overlay", label)) if root is None else _Builder(label, with_position=False).build(root)


def _compose(text: str, label: str) -> yaml.Node | None:
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if (odd := _UNREADABLE.search(text)) is not None:
        before = text[: odd.start()].rsplit("\n", 1)
        line, column = text.count("\n", 0, odd.start()) + 1, len(before[-1]) + 1
        raise ConfigError(
            f"the character {odd.group()!r} cannot be in a deploy file", where=f"{label}:{line}:{column}", hint="remove it"
        )
    try:
        return yaml.compose(text, Loader=_Loader)  # type: ignore[no-any-return]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        problem = error.problem or error.context
        raise ConfigError(
            f"this is not valid YAML: {problem}", where=where, hint=_syntax_hint(str(problem), text, mark)
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"this is not valid YAML: {error}", where=label, hint="correct it") from error


def _syntax_hint(problem: str, text: str, mark: yaml.Mark | None) -> str:
    line = "" if mark is None else "".join(text.split("\n")[mark.line : mark.line + 1])
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces"
    if "cannot start any token" in problem:
        return "quote the text"
    if "whitespace or line break" in problem:
        return "put a space after the tag: {name: !unset }"
    return "quote the text" if "mapping values are not allowed" in problem else "correct it"


class _Builder:
    """Turn composed YAML into a tree."""

    def __init__(self, label: str, *, with_position: bool = True) -> None:
        self._label = label
        self._with_position = with_position
        self._count = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, key_place: str = "") -> Node:
        place = self._place(node)
        self._count += 1
        if self._count > MAX_VALUES:
            raise ConfigError(f"there are more than {MAX_VALUES} values", where=place, hint="check the aliases")
        tag = _TAGS.get(node.tag, "")
        if tag:
            _check_tag(node, place)
        source = Source("overlay", place)
        if isinstance(node, yaml.ScalarNode):
            return Node(None if tag else self._scalar(node, place), source, key_place, tag=tag)
        if id(node) in self._open:
            raise ConfigError("an alias contains itself", where=place, hint="write the value out")
        if not tag and node.tag not in {_TAG + "map", _TAG + "seq"}:
            raise ConfigError(f"the tag {node.tag!r} is not allowed", where=place, hint=_TAG_HINT)
        if len(self._open) == MAX_DEPTH:
            raise ConfigError(f"this is nested more than {MAX_DEPTH} deep", where=place, hint="write it flat")
        self._open.add(id(node))
        value = self._mapping(node) if isinstance(node, yaml.MappingNode) else self._list(node.value)
        self._open.discard(id(node))
        return Node(value, source, key_place, tag=tag)

    def _list(self, nodes: list[yaml.Node]) -> list[Node]:
        items = [self.build(item) for item in nodes]
        for item in items:
            if item.tag and not item.is_mapping:
                raise ConfigError(f"an item of a list cannot be !{item.tag}", where=item.place, hint="remove the tag")
        return items

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
        if isinstance(value, str) and len(value) > MAX_KEY:
            raise ConfigError(f"a key of {len(value)} characters, {shown(value)}", where=place, hint="correct the key")
        return value

    def _scalar(self, node: yaml.ScalarNode, place: str, *, expand: bool = True) -> Any:
        tag, text = node.tag, node.value
        if expand and tag == _TAG + "str" and "${" in text:
            text = _expand(text, place)
            if not node.style:
                tag = str(_Loader("").resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
        if tag in {_TAG + "str", _TAG + "merge"}:
            return text
        convert = _SCALARS.get(tag)
        if convert is None:
            raise ConfigError(f"the tag {tag!r} is not allowed", where=place, hint=_TAG_HINT)
        try:
            return convert(text)
        except ValueError:
            kind = tag.removeprefix(_TAG)
            raise ConfigError(f"{shown(text)} is no {kind}", where=place, hint="correct it") from None

    def _place(self, node: yaml.Node) -> str:
        mark = node.start_mark
        return f"{self._label}:{mark.line + 1}:{mark.column + 1}" if self._with_position else self._label


_TAG_HINT = "the tags are !unset, !append and !replace"


def _check_tag(node: yaml.Node, place: str) -> None:
    """Check that a tag stands at a value that it is about."""
    fits, wanted = {
        "!unset": (isinstance(node, yaml.ScalarNode) and not node.value, "nothing"),
        "!append": (isinstance(node, yaml.SequenceNode), "a list"),
        "!replace": (isinstance(node, yaml.MappingNode), "a mapping; everything else replaces without it"),
    }[node.tag]
    if not fits:
        raise ConfigError(f"{node.tag} takes {wanted}", where=place, hint="correct the value")


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
