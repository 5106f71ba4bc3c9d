"""Several "hosts" on one machine for tests: network namespaces on a bridge, whose cables can be pulled. Needs root."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Host:
    """One host."""

    namespace: str
    address: str
    cable: str
    """The bridge's end of its link."""
    gateway: str
    """Address of this machine as the hosts see it."""

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that runs on this host."""
        return ["ip", "netns", "exec", self.namespace]

    def pull_cable(self) -> None:
        """Cut its link."""
        _ip("link", "set", self.cable, "down")

    def plug_cable(self) -> None:
        """Restore its link."""
        _ip("link", "set", self.cable, "up")


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Yield hosts that reach each other, and that this machine reaches; they are gone at the end.

    Raises:
        OSError: Hosts cannot be made here; the message says why.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise OSError("network namespaces need root and the command `ip` (Debian: iproute2)")
    tag = secrets.token_hex(3)
    subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
    bridge = f"ob{tag}"
    names = [f"o{tag}{number}" for number in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        yield [_add_host(name, bridge, f"{subnet}.{number + 1}", f"{subnet}.254") for number, name in enumerate(names)]
    finally:
        for words in (*(("netns", "delete", name) for name in names), ("link", "delete", bridge)):
            with contextlib.suppress(OSError):
                _ip(*words)


def _add_host(name: str, bridge: str, address: str, gateway: str) -> Host:
    cable, inner = f"{name}c", f"{name}h"
    _ip("netns", "add", name)
    _ip("link", "add", cable, "type", "veth", "peer", "name", inner)
    _ip("link", "set", cable, "master", bridge, "up")
    _ip("link", "set", inner, "netns", name)
    for words in (
        ("address", "add", f"{address}/24", "dev", inner),
        ("link", "set", inner, "up"),
        ("link", "set", "lo", "up"),
    ):
        _ip("-n", name, *words)
    return Host(name, address, cable, gateway)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
