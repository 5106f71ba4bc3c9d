"""A real Mooncake master on loopback, for tests and measurements: `with mooncake_master(folder) as master: ...`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_core.errors import DependencyError

START_S = 60.0
STOP_S = 10.0
POLL_S = 0.05
CLIENT_TTL_S = 5
"""After so many seconds of silence the master forgets a client and what is in its memory."""
MIB = 2**20


def why_no_mooncake() -> str | None:
    """Return why Mooncake cannot be used here, or None; what a test gives as its reason to be skipped."""
    done = subprocess.run(
        [sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        return f"Mooncake cannot be imported: {done.stderr.strip().splitlines()[-1]}"
    return None if _executable() else "there is no mooncake_master beside this Python"


def _executable() -> str | None:
    return shutil.which("mooncake_master", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@dataclass
class MooncakeMaster:
    """A master that can be killed and started again at the same ports."""

    folder: Path
    """Where its log goes."""
    host: str = "127.0.0.1"
    rpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return `extra` of a MooncakeStoreConnector that uses this master; 64 MiB of memory unless `more` says otherwise."""
        return {
            "host": self.host,
            "master": f"{self.host}:{self.rpc_port}",
            "metadata_server": f"http://{self.host}:{self.http_port}/metadata",
            "segment": 64 * MIB,
            "localbuf": 16 * MIB,
            **more,
        }

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait` return when it accepts connections.

        Raises:
            DependencyError: It is not installed.
            RuntimeError: It ended or was not ready in time.
        """
        executable = _executable()
        if executable is None:
            raise DependencyError("there is no mooncake_master", hint="pip install 'omni-connectors[mooncake]'")
        # Every address is given, since each one's default is open to the network.
        command = [
            executable,
            f"--rpc_address={self.host}",
            f"--rpc_port={self.rpc_port}",
            "--rpc_thread_num=2",
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={self.host}",
            f"--http_metadata_server_port={self.http_port}",
            f"--metrics_host={self.host}",
            f"--metrics_port={self.metrics_port}",
            f"--client_ttl={CLIENT_TTL_S}",
        ]
        with (self.folder / "mooncake_master.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the process accepts connections.

        Raises:
            RuntimeError: It ended or was not ready in time.
        """
        deadline = time.monotonic() + START_S
        for port in (self.rpc_port, self.http_port):
            while not _accepts(self.host, port):
                ended = self._process is not None and self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"mooncake_master was not ready: {(self.folder / 'mooncake_master.log').read_text()[-2000:]}"
                    )
                time.sleep(POLL_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        self._process = None

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.end(signal.SIGKILL)


@contextlib.contextmanager
def mooncake_master(folder: Path, *, host: str = "127.0.0.1") -> Iterator[MooncakeMaster]:
    """Start a master on free ports of `host` and end it behind the block. Its log is in `folder`."""
    rpc_port, http_port, metrics_port = _free_ports(host, 3)
    master = MooncakeMaster(folder, host, rpc_port, http_port, metrics_port)
    master.start()
    try:
        yield master
    finally:
        master.end()


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((host, 0))
        return [sock.getsockname()[1] for sock in sockets]
