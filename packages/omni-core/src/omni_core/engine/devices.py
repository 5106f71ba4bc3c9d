"""Devices as processes see them, and the locks that let stages on one device start one after another (DV-06, DV-07).

The locks are files, so that they hold between servers of one user, too, and end with the process that holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_core.deploy.devices import parse_devices
from omni_core.errors import ConfigError
from omni_core.platforms import Platform

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_ALL = "all"


@dataclass(frozen=True)
class DeviceSet:
    """The devices of one replica."""

    environment: Mapping[str, str]
    """What shows them to its processes."""
    locks: tuple[tuple[str, bool], ...]
    """Names of locks in the order in which to take them, and whether each is exclusive."""


def device_set(platform: Platform, devices: str | None, *, name: str, environ: Mapping[str, str] = os.environ) -> DeviceSet:
    """Return the devices of a replica. Their ids count within the launcher's visible devices (DV-06).

    Args:
        platform: The platform; one whose devices are not numbered needs no lock.
        devices: Comma list of ids; None uses the launcher's devices as they are.
        name: The stage, for messages.
        environ: The launcher's environment.

    Raises:
        ConfigError: The launcher does not see so many devices.
    """
    variable = platform.visible_devices_env
    if variable is None:
        return DeviceSet({}, ())
    seen = parse_devices(environ[variable]) if variable in environ else None
    if devices is None:
        # Without a list it may use any device: it waits for all the others, and they for it.
        found = [_ALL] if seen is None else seen
        return DeviceSet({}, _locks(platform, found))
    ids = parse_devices(devices)
    if seen is not None:
        ids = [_nth(seen, item, variable, name) for item in ids]
    return DeviceSet({variable: ",".join(ids)}, _locks(platform, ids))


def _nth(seen: Sequence[str], item: str, variable: str, name: str) -> str:
    if not item.isdecimal():
        return item
    if int(item) >= len(seen):
        raise ConfigError(
            f"stage {name} uses device {item}, but {variable} shows {len(seen)}",
            where=f"stage {name}",
            hint=f"devices count from 0 within {variable}; change devices, or show more",
            param="devices",
        )
    return seen[int(item)]


def _locks(platform: Platform, ids: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    # One order for everybody, so that two stages never wait for each other.
    single = [(f"{platform.name}-{item}", True) for item in sorted(set(ids) - {_ALL})]
    return ((f"{platform.name}-{_ALL}", _ALL in ids), *single)


@contextlib.asynccontextmanager
async def hold(
    locks: Sequence[tuple[str, bool]], timeout_s: float, *, who: str, folder: Path | None = None
) -> AsyncIterator[None]:
    """Hold locks, waiting at most `timeout_s` for them; go on without those that were not free by then, with a warning."""
    if not locks:
        yield
        return
    folder = folder or lock_dir()
    deadline = asyncio.get_running_loop().time() + timeout_s
    with contextlib.ExitStack() as stack:
        for name, exclusive in locks:
            fd = stack.enter_context(_opened(folder / f"{name}.lock"))
            if not await _locked(fd, exclusive=exclusive, deadline=deadline):
                logger.warning("%s: device %s was not free within %g s; it starts all the same", who, name, timeout_s)
        yield


async def _locked(fd: int, *, exclusive: bool, deadline: float) -> bool:
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    while True:
        try:
            fcntl.flock(fd, operation)
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        else:
            return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def lock_dir() -> Path:
    """Return this user's folder of lock files, mode 0700.

    Raises:
        ConfigError: Another user made it.
    """
    folder = Path(tempfile.gettempdir()) / f"omni-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to other users", where=str(folder), hint="remove it, or set TMPDIR")
    return folder
