"""The address of a server."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_server import listening


def test_port_zero_takes_a_free_one_and_tells_which() -> None:
    with listening.bind("127.0.0.1", 0, None) as one, listening.bind("127.0.0.1", 0, None) as other:
        ports = {sock.getsockname()[1] for sock in (one, other)}

        assert len(ports) == 2
        assert listening.describe(one, "127.0.0.1") == f"http://127.0.0.1:{one.getsockname()[1]}"


def test_bound_port_is_taken_before_anybody_listens() -> None:
    """E12: of two servers that start together one is told at once."""
    with listening.bind("127.0.0.1", 0, None) as first:
        port = first.getsockname()[1]

        with pytest.raises(ConfigError, match="taken") as caught, listening.bind("127.0.0.1", port, None):
            pass

        assert str(port) in caught.value.where
        assert caught.value.exit_code == 2


def test_nobody_can_connect_before_the_server_is_ready() -> None:
    with listening.bind("127.0.0.1", 0, None) as sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(sock.getsockname(), timeout=5)


def test_port_can_be_taken_again_while_old_connections_linger() -> None:
    with listening.bind("127.0.0.1", 0, None) as sock:
        address = sock.getsockname()
        listening.allow_restart(sock)
        sock.listen()
        client = socket.create_connection(address)
        accepted, _ = sock.accept()
        accepted.close()  # the side that closes first is the one that lingers
        assert client.recv(1) == b""
        client.close()

    with listening.bind("127.0.0.1", address[1], None) as again:
        assert again.getsockname() == address


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_host_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(ConfigError) as caught, listening.bind(host, 0, None):
        pass

    assert host in caught.value.where


def test_ipv6_address_is_written_in_brackets() -> None:
    with listening.bind("::1", 0, None) as sock:
        assert listening.describe(sock, "::1") == f"http://[::1]:{sock.getsockname()[1]}"


def test_unix_socket_of_a_dead_server_is_replaced_and_of_a_living_one_not(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

    with listening.bind("", 0, path) as sock:
        assert listening.describe(sock, "") == f"unix:{path}"
        sock.listen()
        with pytest.raises(ConfigError, match="runs"), listening.bind("", 0, path):
            pass

    assert not Path(path).exists()


def test_unix_socket_is_taken_before_anybody_listens(tmp_path: Path) -> None:
    """E12: of two servers that start together one is told at once."""
    path = tmp_path / "socket"
    other = tmp_path / "other"
    other.symlink_to(path)
    with listening.bind("", 0, str(path)) as first:
        for name in (path, other):
            with pytest.raises(ConfigError, match="starts") as caught, listening.bind("", 0, str(name)):
                pass
            assert caught.value.where == f"--uds {name}"

        first.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_server_that_ends_leaves_the_socket_of_the_one_that_took_its_place(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        with listening.bind("", 0, path) as draining:
            draining.listen()
            draining.close()  # what the HTTP server does before it ends what it has
            newer = stack.enter_context(listening.bind("", 0, path))
            newer.listen()

        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    assert not Path(path).exists()


def test_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")

    with pytest.raises(ConfigError, match="file"), listening.bind("", 0, str(path)):
        pass

    assert path.read_text() == "precious"
