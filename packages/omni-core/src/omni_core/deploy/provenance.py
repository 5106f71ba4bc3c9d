"""What is remembered of every resolved value: where it came from, and what lost against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from omni_core.deploy.tree import Node
from omni_core.stage import Source


@dataclass(frozen=True)
class Choice:
    """A value that was chosen among several places."""

    value: Any
    source: Source
    losers: tuple[Source, ...] = ()


@dataclass
class Provenance:
    """The winner and the losers of each value, by its name."""

    sources: dict[str, Source] = field(default_factory=dict)
    losers: dict[str, tuple[Source, ...]] = field(default_factory=dict)

    def record(self, name: str, node: Node) -> None:
        """Remember a value, and those inside a mapping as `name.key`."""
        self.sources[name] = source_of(node)
        self.losers[name] = losers_of(node)
        for key, item in node.items():
            self.record(f"{name}.{key}", item)

    def choose(self, name: str, choice: Choice) -> None:
        """Remember a choice."""
        self.sources[name] = choice.source
        self.losers[name] = choice.losers

    def update(self, other: Provenance) -> None:
        """Take over what another one remembers."""
        self.sources.update(other.sources)
        self.losers.update(other.losers)


def source_of(node: Node) -> Source:
    """Return where a node came from, with its value."""
    return Source(node.source.layer, node.source.place, node.plain())


def losers_of(node: Node) -> tuple[Source, ...]:
    """Return the values that lost against a node, the strongest first."""
    return tuple(source_of(lost) for lost in node.lost)


def choose(nodes: Iterable[Node | None], default: Source) -> Choice:
    """Return the first value that is set, or else the default; all others lose, in this order."""
    ranked = [item for node in nodes if node is not None for item in (node, *node.lost)]
    sources = [source_of(node) for node in ranked if node.value is not None]
    winner, *losers = [*sources, default]
    return Choice(winner.value, winner, tuple(losers))
