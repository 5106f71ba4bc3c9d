"""Merge configuration trees: mappings by key, everything else replaces, and null erases."""

from __future__ import annotations

import logging
from functools import reduce

from omni_core.deploy.tree import Key, Node

logger = logging.getLogger(__name__)

ATOMIC = frozenset({"omni_kv_config"})
"""Keys whose mappings are replaced whole."""


def merge(below: Node, above: Node, path: tuple[Key, ...] = ()) -> Node:
    """Return `above` laid over `below`.

    Mappings merge by key at every depth, except those of `ATOMIC` keys. Lists and scalars replace. A null in `above` stays as
    null, which means that nothing is set (DY-04). `stages` are mappings by id here (`keys.normalise`).
    """
    atomic = bool(path) and path[-1] in ATOMIC
    if below.is_mapping and above.is_mapping and not atomic:
        items = dict(below.value)
        for key, node in above.value.items():
            items[key] = merge(items[key], node, (*path, key)) if key in items else node
        return above.with_items(items)
    if below.is_mapping != above.is_mapping and below.value is not None and above.value is not None:
        logger.warning("%s: %s replaces the whole value of %s", above.place, ".".join(map(str, path)), below.place)
    return above


def merge_all(trees: list[Node]) -> Node:
    """Return trees merged, the last one on top."""
    return reduce(merge, trees)
