"""Plugin managers for tests, and distributions that are installed in a folder of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from omni_core.hookspecs import hookimpl
from omni_core.plugins import PluginManager


def make_plugin(**hooks: Any) -> ModuleType:
    """Return a plugin with these hook implementations; a value that is no function is what the hook returns."""
    plugin = ModuleType("plugin")
    for name, given in hooks.items():
        setattr(plugin, name, hookimpl(given if callable(given) else _constant(given)))
    return plugin


def _constant(value: Any) -> Any:
    def implementation() -> Any:
        return value

    return implementation


def make_manager(plugins: Mapping[str, object] | None = None) -> PluginManager:
    """Return a manager with core's own plugin and the given ones by distribution name, without the installed ones."""
    manager = PluginManager()
    manager.load_core()
    for name, plugin in (plugins or {}).items():
        manager.add(plugin, name)
    return manager


def install(
    folder: Path,
    name: str,
    *,
    source: str = "",
    version: str = "1.0",
    requires: Iterable[str] = (),
    entry_points: Mapping[str, Iterable[str]] | None = None,
) -> str:
    """Make a distribution in a folder that is on `sys.path`, and return the name of its module.

    Args:
        folder: The folder.
        name: Name of the distribution; its module has underscores.
        source: Code of the module.
        version: Version of the distribution.
        requires: Its requirements.
        entry_points: Entry points by group, such as `{"omni": ["plug = plug"]}`; by default the module in the group `omni`.
    """
    module = name.replace("-", "_")
    sys.modules.pop(module, None)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    groups = {"omni": [f"{module} = {module}"]} if entry_points is None else entry_points
    text = "".join(f"[{group}]\n" + "".join(f"{line}\n" for line in found) for group, found in groups.items())
    (info / "entry_points.txt").write_text(text)
    return module
