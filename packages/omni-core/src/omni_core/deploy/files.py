"""Find deploy files, follow `base_config`, and merge what they say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.deploy.check import check_types
from omni_core.deploy.keys import check_document_keys, normalise
from omni_core.deploy.merge import merge_all, settle
from omni_core.deploy.reader import read_deploy_file
from omni_core.deploy.schema import DeployConfig
from omni_core.deploy.tree import Node, empty
from omni_core.errors import ConfigError
from omni_core.plugins import Offer, PluginManager
from omni_core.stage import Source
from omni_core.suggest import way_out

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class DeployFile:
    """A deploy file that was found."""

    file: Traversable
    label: str
    """What messages call it: a path, relative to the working directory where that is shorter."""
    folder: Traversable
    """Where its `base_config` is looked up first."""


@dataclass(frozen=True)
class Deployment:
    """What the deploy files say, merged."""

    tree: Node
    files: tuple[str, ...] = ()
    """The files that were read, the most specific first."""


@dataclass
class Bundle:
    """The deploy files that plugins bring (RG-13, RG-14)."""

    manager: PluginManager
    _found: dict[str, list[Offer[DeployFile]]] | None = field(default=None, init=False)

    def find(self, name: str) -> DeployFile | None:
        """Return the bundled file of a name, with or without `.yaml`, or None.

        Raises:
            ConfigError: Two distributions bring one; the message names both.
        """
        offers = next((self._files[n] for n in (name, *(name + suffix for suffix in _SUFFIXES)) if n in self._files), [])
        if len(offers) > 1:
            owners = " and ".join(offer.distribution for offer in offers)
            raise ConfigError(f"{owners} both bring a deploy file {name}", hint="name it by its path")
        return offers[0].record if offers else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all bundled files."""
        return tuple(sorted(self._files))

    @property
    def _files(self) -> dict[str, list[Offer[DeployFile]]]:
        if self._found is None:
            self._found = {}
            for distribution, folders in self.manager.collect("omni_deploy_dirs"):
                for folder in folders:
                    for file in sorted(folder.iterdir(), key=lambda item: item.name):
                        if file.name.endswith(_SUFFIXES):
                            found = DeployFile(file, label_of(file), folder)
                            self._found.setdefault(file.name, []).append(Offer(distribution, found))
        return self._found


def label_of(file: Traversable) -> str:
    """Return a file's path, relative to the working directory where it lies below it."""
    path = Path(str(file))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(file)


def find_deploy_file(name: str, bundle: Bundle) -> DeployFile:
    """Return the deploy file that a user names by a path, or by the name of a bundled file (RG-14).

    Raises:
        ConfigError: There is none.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return DeployFile(path, label_of(path), path.parent)
    bundled = bundle.find(path.name) if path.parent.name in {"", "deploy"} else None
    if bundled is None:
        raise ConfigError(
            f"there is no deploy file {name}",
            where="--deploy-config",
            hint=f"name a path, or a bundled file: {way_out(path.name, bundle.names, 'bundled files')}",
        )
    return bundled


def read_deployment(names: Sequence[str], bundle: Bundle) -> Deployment:
    """Read the named deploy files and everything below them; later ones go on top.

    Raises:
        ConfigError: A file is missing or wrong, or `base_config` runs in a circle (BC-03).
    """
    return _read([find_deploy_file(name, bundle) for name in names], bundle)


def read_bundled(name: str, bundle: Bundle, *, pipeline: str) -> Deployment:
    """Read the default deploy file of a pipeline.

    Raises:
        ConfigError: The pipeline names a file that no plugin brings.
    """
    file = bundle.find(name)
    if file is None:
        raise ConfigError(
            f"the deploy file {name} of pipeline {pipeline!r} is in no plugin's deploy folder",
            hint="the package of the pipeline must offer its folder through omni_deploy_dirs",
        )
    return _read([file], bundle)


def _read(files: Sequence[DeployFile], bundle: Bundle) -> Deployment:
    trees: list[Node] = []
    labels: list[str] = []
    for position, file in enumerate(files):
        chain = _chain(file, bundle)
        labels = [found.label for found, _ in chain] + labels
        for depth, (_, tree) in enumerate(reversed(chain)):
            trees.append(tree.with_layer("base" if position == depth == 0 else "overlay"))
    merged = merge_all(trees) if trees else empty(Source("default"))
    items = {key: node if key == "platforms" else settle(node) for key, node in merged.items() if node.tag != "unset"}
    items.pop("base_config", None)
    return Deployment(merged.with_items(items), tuple(labels))


def _chain(file: DeployFile, bundle: Bundle) -> list[tuple[DeployFile, Node]]:
    """Return a file and the files below it, each read, checked and normalised."""
    chain: list[tuple[DeployFile, Node]] = []
    seen: list[str] = []
    while True:
        identity = _identity(file)
        if identity in seen:
            circle = " -> ".join([*(found.label for found, _ in chain[seen.index(identity) :]), file.label])
            raise ConfigError(f"base_config runs in a circle: {circle}", where=chain[-1][0].label, hint="break it")
        seen.append(identity)
        tree = read_document(file)
        chain.append((file, tree))
        base = tree.get("base_config")
        if base is None:
            return chain
        file = _find_base(base, file, bundle)


def read_document(file: DeployFile) -> Node:
    """Read, check and normalise one file."""
    tree = check_document_keys(read_deploy_file(file.file, file.label))
    check_types(DeployConfig, tree)
    return normalise(tree)


def _find_base(base: Node, file: DeployFile, bundle: Bundle) -> DeployFile:
    name = str(base.value)
    path = Path(name).expanduser()
    found: Traversable = path if path.is_absolute() else file.folder.joinpath(name)
    if found.is_file():
        folder = Path(str(found)).parent if isinstance(found, Path) else file.folder
        return DeployFile(found, label_of(found), folder)
    bundled = bundle.find(path.name) if path.parent.name in {"", "deploy"} else None
    if bundled is None:
        raise ConfigError(
            f"base_config {name} of {file.label} does not exist",
            where=base.place,
            hint=f"a relative path starts at the file's own folder; {way_out(path.name, bundle.names, 'bundled files')}",
        )
    return bundled


def _identity(file: DeployFile) -> str:
    return os.path.realpath(file.file) if isinstance(file.file, Path) else str(file.file)
