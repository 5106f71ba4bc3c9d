"""Merge configuration trees: mappings by key, everything else replaces, null erases, and tags say otherwise."""

from __future__ import annotations

from functools import reduce

from omni_core.deploy.notes import warn
from omni_core.deploy.tree import Key, Node
from omni_core.errors import ConfigError

ATOMIC = frozenset({"omni_kv_config"})
"""Keys whose mappings are replaced whole."""


def merge(below: Node, above: Node, path: tuple[Key, ...] = ()) -> Node:
    """Return `above` laid over `below`.

    Mappings merge by key at every depth, except those of `ATOMIC` keys. Lists and scalars replace, and remember what they
    replaced. A null in `above` stays as null, which means that nothing is set (DY-04). `stages` are mappings by id here
    (`keys.normalise`). A value with the tag `unset` takes away what is below, `append` extends a list, and `replace` stops a
    mapping from merging; a tag that finds nothing below it stays, for a layer further down, until `settle`.

    Raises:
        ConfigError: A list is to be appended to something that is no list.
    """
    if above.tag == "append":
        return _appended(below, above, path)
    whole = above.tag == "replace" or (bool(path) and path[-1] in ATOMIC)
    if below.is_mapping and above.is_mapping and not whole:
        items = dict(below.value)
        for key, node in above.value.items():
            found = items.get(key)
            if found is None or found.tag == "unset":
                items[key] = node
            elif node.tag == "unset":
                del items[key]
            else:
                items[key] = merge(found, node, (*path, key))
        return Node(items, above.source, above.key_place, (*above.lost, *below.lost), below.tag)
    if below.is_mapping != above.is_mapping and not above.tag and below.value is not None and above.value is not None:
        warn(f"{above.place}: {'.'.join(map(str, path))} replaces the whole value of {below.place}")
    return above.over(below)


def _appended(below: Node, above: Node, path: tuple[Key, ...]) -> Node:
    if below.value is None:
        return above.over(below, above.tag)
    if not isinstance(below.value, list):
        name = ".".join(map(str, path))
        raise ConfigError(
            f"{name} is no list at {below.place}, so nothing can be appended", where=above.place, hint="remove !append"
        )
    return Node([*below.value, *above.value], above.source, above.key_place, above.lost).over(below, below.tag)


def settle(tree: Node) -> Node:
    """Return a tree without tags: what they are about is not there."""
    value = tree.value
    if isinstance(value, dict):
        kept = {key: settle(node) for key, node in value.items() if node.tag != "unset"}
        if not tree.tag and len(kept) == len(value) and all(kept[key] is node for key, node in value.items()):
            return tree
        value = kept
    elif not tree.tag:
        return tree
    return Node(value, tree.source, tree.key_place, tree.lost)


def merge_all(trees: list[Node]) -> Node:
    """Return trees merged, the last one on top."""
    return reduce(merge, trees)
