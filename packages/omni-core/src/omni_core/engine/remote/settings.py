"""Where the head of a pipeline is, what is shared with it, and for how long its workers wait."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from omni_core.errors import ConfigError

TOKEN_ENV = "OMNI_TOKEN"
TOKEN_FLAG = "--omni-token"
ADDRESS_FLAG = "--omni-master-address"
MIN_TOKEN_BYTES = 8


@dataclass(frozen=True)
class HeadAddress:
    """Where the head listens, and the token that it shares with its workers."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class HeadOptions:
    """How a head runs."""

    own_stages: frozenset[int]
    """Stages that its process runs itself; every other one is a worker's."""
    address: HeadAddress
    heartbeat_timeout_s: float = 10.0
    """A worker that says nothing for this long is lost."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs."""

    stage_id: int
    address: HeadAddress
    replica_address: str = ""
    """Address of this host for the connection to the head and for connectors; empty takes the one that leads to the head."""
    heartbeat_timeout_s: float = 10.0
    """Data that the head's host leaves unacknowledged for this long means that it is lost."""
    head_timeout_s: float = 300.0
    """Longest wait for the head, at the start and whenever it is lost."""


def read_token(given: str | None, environ: dict[str, str] | None = None) -> str:
    """Return the shared token: what was given, `@FILE` for a file's content, else that of OMNI_TOKEN, which is then unset.

    It is taken out of the environment so that the processes of stages do not have it.

    Raises:
        ConfigError: The file cannot be read, or the token is too short to be one.
    """
    variables = os.environ if environ is None else environ
    inherited = variables.pop(TOKEN_ENV, "")
    where = TOKEN_FLAG if given is not None else TOKEN_ENV
    token = inherited if given is None else given
    if given is not None and given.startswith("@"):
        try:
            token = Path(given[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"the file {given[1:]} cannot be read: {error}"
            raise ConfigError(message, where=where, hint="write the token in it") from error
    token = token.strip()
    if (token or given is not None) and len(token.encode()) < MIN_TOKEN_BYTES:
        hint = "make one with `openssl rand -hex 16`"
        raise ConfigError(f"the token has fewer than {MIN_TOKEN_BYTES} bytes", where=where, hint=hint)
    return token


def check_head(host: str, token: str) -> None:
    """Check that the head's address is one that workers can use, and that a token is there if other hosts can (SB-10).

    Raises:
        ConfigError: It is not, or there is none, or the address is not known.
    """
    if host in ("", "*", "0.0.0.0", "::"):
        hint = "give the address of the head's host that workers connect to"
        raise ConfigError(f"{host!r} is no address of one host", where=ADDRESS_FLAG, hint=hint)
    if token or all(ipaddress.ip_address(address).is_loopback for address in addresses(host)):
        return
    raise ConfigError(
        f"{host} can be reached from other hosts, and there is no token",
        where=ADDRESS_FLAG,
        hint=f"set {TOKEN_ENV}, or {TOKEN_FLAG} @FILE, to the same secret in every command",
    )


def addresses(host: str, flag: str = ADDRESS_FLAG) -> list[str]:
    """Return the IP addresses of a host.

    Raises:
        ConfigError: It is not known.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        message = f"the host {host} is not known: {error}"
        raise ConfigError(message, where=f"{flag} {host}", hint="give a name or an address") from error
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def check_own_address(host: str, flag: str) -> None:
    """Check that an address is one of this host.

    Raises:
        ConfigError: It is not.
    """
    address = addresses(host, flag)[0]
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            hint = "give an address of this host that the other hosts reach"
            raise ConfigError(f"{host} is no address of this host: {error.strerror}", where=flag, hint=hint) from error


def address_towards(host: str, port: int) -> str:
    """Return this host's address on the way to another; no packet is sent. Empty where there is no way now."""
    for address in addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, port))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""
