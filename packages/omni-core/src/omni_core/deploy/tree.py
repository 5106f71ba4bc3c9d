"""Configuration values that remember where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ConfigError
from omni_core.stage import Source

Key = str | int
MAX_DEPTH = 50
"""Most mappings and lists inside each other."""


@dataclass(frozen=True)
class Node:
    """One value: a scalar, a mapping of nodes or a list of nodes."""

    value: Any
    """None, bool, int, float, str; `dict[Key, Node]`; `list[Node]`."""
    source: Source
    key_place: str = ""
    """Place of the key in front of this value, for messages about the key."""
    lost: tuple[Node, ...] = ()
    """The values that this one replaced, the strongest first."""
    tag: str = ""
    """How this value is laid over another one: `unset`, `append`, `replace`, or as `merge` says."""

    @property
    def is_mapping(self) -> bool:
        """Whether this is a mapping."""
        return isinstance(self.value, dict)

    @property
    def place(self) -> str:
        """Where the value was written."""
        return self.source.place

    def plain(self) -> Any:
        """Return the value without its sources."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def get(self, key: Key) -> Node | None:
        """Return the node under a key of a mapping; None where it is not there or is null."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return None if found is None or found.value is None else found

    def items(self) -> Iterator[tuple[Key, Node]]:
        """Yield the keys and nodes of a mapping; nothing for another node."""
        yield from self.value.items() if isinstance(self.value, dict) else ()

    def find(self, path: Sequence[Key]) -> Node:
        """Return the node at a path, or the deepest one on the way."""
        return self._walk(path)[-1]

    def existing(self, path: Sequence[Any]) -> list[Key]:
        """Return as much of a path as exists."""
        return list(path[: len(self._walk(path)) - 1])

    def _walk(self, path: Sequence[Any]) -> list[Node]:
        nodes = [self]
        for key in path:
            inside = nodes[-1].value
            is_index = isinstance(inside, list) and isinstance(key, int) and key < len(inside)
            if not is_index and not (isinstance(inside, dict) and key in inside):
                break
            nodes.append(inside[key])
        return nodes

    def with_layer(self, layer: str) -> Node:
        """Return the same tree with another layer in every source."""
        value = self.value
        if isinstance(value, dict):
            value = {key: node.with_layer(layer) for key, node in value.items()}
        elif isinstance(value, list):
            value = [node.with_layer(layer) for node in value]
        lost = tuple(node.with_layer(layer) for node in self.lost)
        return Node(value, Source(layer, self.source.place), self.key_place, lost, self.tag)

    def with_items(self, items: Mapping[Key, Node]) -> Node:
        """Return a mapping node with other items, from the same place."""
        return Node(dict(items), self.source, self.key_place, self.lost, self.tag)

    def over(self, below: Node, tag: str = "") -> Node:
        """Return this node, remembering one that it replaces."""
        lost = (*self.lost, Node(below.value, below.source, below.key_place), *below.lost)
        return Node(self.value, self.source, self.key_place, lost, tag)


def from_plain(value: Any, source: Source, depth: int = 0) -> Node:
    """Return plain data as a tree whose nodes all have one source.

    Raises:
        ConfigError: It is nested more than MAX_DEPTH deep, as data that contains itself is.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"this is nested more than {MAX_DEPTH} deep", where=source.place, hint="write it flat")
    if isinstance(value, Mapping):
        return Node({key: from_plain(item, source, depth + 1) for key, item in value.items()}, source, source.place)
    if isinstance(value, (list, tuple)):
        return Node([from_plain(item, source, depth + 1) for item in value], source, source.place)
    return Node(value, source, source.place)


def shown(value: Any, limit: int = 60) -> str:
    """Return a value as messages show it: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def empty(source: Source) -> Node:
    """Return an empty mapping."""
    return Node({}, source)
