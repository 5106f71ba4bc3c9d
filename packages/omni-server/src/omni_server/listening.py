"""Take the address of a server: bound at once, so that nobody else gets it, and listening only when the server is ready."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from typing import Any

from omni_core.errors import ConfigError


@contextlib.contextmanager
def bind(host: str, port: int, uds: str | None, *, reuse_port: bool = False) -> Iterator[socket.socket]:
    """Bind a socket that does not listen yet; close it, and remove a Unix socket's file, at the end.

    Args:
        host: Name or address.
        port: Port; 0 takes a free one.
        uds: Path of a Unix socket, instead of host and port.
        reuse_port: Whether other processes of this user that say so too may listen on the port beside this one.

    Raises:
        ConfigError: The address is taken, or is not one of this machine.
    """
    sock = _bind_unix(uds) if uds else _bind_tcp(host, port, reuse_port=reuse_port)
    own = _identity(uds) if uds else None
    try:
        yield sock
    finally:
        sock.close()
        # A server that only ends what it has answers no more, so that the next one may have taken its place by now.
        if uds and _identity(uds) == own:
            os.unlink(uds)


def allow_restart(sock: socket.socket) -> None:
    """Let a later server take the port while connections of this one linger. Called right before listening."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def announce(sock: socket.socket, host: str) -> None:
    """Write the line that says that the server accepts connections."""
    sys.stdout.write(f"Listening on {describe(sock, host)}\n")
    sys.stdout.flush()


def describe(sock: socket.socket, host: str) -> str:
    """Return the URL of a bound socket."""
    name: Any = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"http://[{host}]:{name[1]}" if ":" in host else f"http://{host}:{name[1]}"


def _bind_tcp(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    where = f"--host {host} --port {port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the host is not known: {error}", where=where, hint="give an address of this machine") from error
    family, kind, protocol, _, address = found[0]
    try:
        return _bind(family, kind, protocol, address, reuse=False, reuse_port=reuse_port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot listen there: {error.strerror}", where=where, hint="choose another address") from error
    try:
        # Not with `reuse` at once: until one of them listens, two servers that start together would both get the port.
        return _bind(family, kind, protocol, address, reuse=True, reuse_port=reuse_port)
    except OSError as error:
        raise ConfigError("the port is taken", where=where, hint="choose another port; 0 takes a free one") from error


def _bind(family: int, kind: int, protocol: int, address: Any, *, reuse: bool, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


class _UnixSocket(socket.socket):
    """A Unix socket with a name that the kernel keeps to it for as long as it is open, whatever becomes of its file.

    A file says nothing of a server that does not listen yet: it looks like one that a dead server left.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def take_name(self, path: str) -> bool:
        """Take the name that stands for a file, and tell whether no other server has it."""
        folder, file = os.path.split(os.path.realpath(path))
        found = os.stat(folder)  # not its path, which is another folder in another container
        digest = hashlib.sha256(f"{found.st_dev} {found.st_ino} {file}".encode()).hexdigest()
        try:
            self._name.bind(f"\0omni-{digest}")  # an abstract name: it needs no file and ends with its process
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    def close(self) -> None:
        super().close()
        self._name.close()


def _bind_unix(path: str) -> socket.socket:
    where = f"--uds {path}"
    sock = _UnixSocket()
    try:
        if not sock.take_name(path):
            raise _taken(where)
        if os.path.exists(path):
            _remove_stale(path, where)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen there: {error}", where=where, hint="choose another path") from error
    except ConfigError:
        sock.close()
        raise
    return sock


def _taken(where: str) -> ConfigError:
    return ConfigError("the path is taken by a server that runs or starts", where=where, hint="choose another path")


def _identity(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another one that takes its place; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _remove_stale(path: str, where: str) -> None:
    """Remove a socket that a dead server left; refuse one that answers, and files that are no sockets."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError("the path is a file", where=where, hint="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise _taken(where)
