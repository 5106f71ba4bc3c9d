"""Platforms: what kind of device stages run on, and how it is detected without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from omni_core import envs
from omni_core.errors import ConfigError
from omni_core.suggest import way_out
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.plugins import PluginManager


@dataclass(frozen=True)
class Platform:
    """A kind of device."""

    name: str
    """Name under `platforms:` in deploy files: `cpu`, `cuda`."""
    device_type: str
    """Device type of torch."""
    visible_devices_env: str | None = None
    """Variable that limits the devices a process sees; None where devices are not numbered."""
    start_method: Literal["forkserver", "spawn"] = "spawn"
    """How stage processes start."""


@dataclass(frozen=True)
class PlatformEntry:
    """One platform that a plugin offers (hook `omni_platforms`)."""

    name: str
    detect: str | None
    """Target of a function `() -> bool`; None for a platform that is used when no other detects itself."""
    target: str
    """Target of the `Platform`."""


CPU = Platform("cpu", "cpu", start_method="forkserver")
CUDA = Platform("cuda", "cuda", visible_devices_env="CUDA_VISIBLE_DEVICES")


def detect_cuda(dev: Path = Path("/dev")) -> bool:
    """Return whether an NVIDIA GPU can be used: its device node is there, visible, and torch is not a CPU build."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return False
    try:
        if metadata.version("torch").endswith("+cpu"):
            return False
    except metadata.PackageNotFoundError:
        pass
    return any(re.fullmatch(r"nvidia\d+", node.name) for node in dev.glob("nvidia*"))


def current_platform(manager: PluginManager, name: str | None = None) -> Platform:
    """Return the platform of this machine: `name`, else OMNI_PLATFORM, else the one that detects itself.

    Raises:
        ConfigError: There is no platform of that name, or two detect themselves.
    """
    from omni_core.plugins import unique_by_name

    entries = unique_by_name(manager.collect("omni_platforms"), "platform")
    where = "" if name else "OMNI_PLATFORM"
    name = name or envs.read("OMNI_PLATFORM")
    if name:
        if name not in entries:
            raise ConfigError(f"there is no platform {name!r}", where=where, hint=way_out(name, entries, "platforms"))
        return _load(entries[name].record)
    found = [offer for offer in entries.values() if offer.record.detect is not None and _detects(offer.record)]
    if len(found) > 1:
        names = " and ".join(f"{offer.record.name!r} ({offer.distribution})" for offer in found)
        raise ConfigError(f"platforms {names} are both detected", hint="choose one with OMNI_PLATFORM")
    if found:
        return _load(found[0].record)
    return _load(next(offer.record for offer in entries.values() if offer.record.detect is None))


def _detects(entry: PlatformEntry) -> bool:
    detect = load_target(entry.detect or "", where=f"platform {entry.name!r}")
    if not isinstance(detect, Callable):  # type: ignore[arg-type]
        raise ConfigError(f"{entry.detect!r} is no function", where=f"platform {entry.name!r}")
    return bool(detect())  # type: ignore[operator]


def _load(entry: PlatformEntry) -> Platform:
    platform = load_target(entry.target, where=f"platform {entry.name!r}")
    if not isinstance(platform, Platform):
        raise ConfigError(f"{entry.target!r} is no Platform", where=f"platform {entry.name!r}", hint="correct the plugin")
    return platform
