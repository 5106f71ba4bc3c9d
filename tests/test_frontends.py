"""Several frontends on one port, as real processes: budgets, refusals, one that is killed, and the end (FE-01 to FE-08)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from omni_core.testing.waiting import all_gone, wait_until
from omni_server.testing import Command, command

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

DEPLOY = """
base_config: personaplex.yaml
duplex_session:
  max_sessions: {sessions}
  replica_policy: least_sessions
  max_sessions_per_replica: 2
stages:
  - stage_id: 0
    num_replicas: {replicas}
  - stage_id: 1
    num_replicas: {replicas}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "personaplex"
    subprocess.run([sys.executable, "-m", "omni_core", "tiny", "personaplex", str(folder)], timeout=120, check=True)
    return folder


@contextlib.contextmanager
def frontends(
    checkpoint: Path, folder: Path, count: int, *words: str, sessions: int = 4, replicas: int = 4
) -> Iterator[tuple[Command, str]]:
    """Serve with `count` frontends and yield the command and the URL."""
    deploy = folder / "deploy.yaml"
    deploy.write_text(DEPLOY.format(sessions=sessions, replicas=replicas))
    line = ["serve", str(checkpoint), "--deploy-config", str(deploy), "--port", "0", "--api-server-count", str(count)]
    with command(*line, *words, log=folder / "log", env={"OMP_NUM_THREADS": "1"}) as running:
        yield running, running.wait_for("Listening on ", 240).rpartition(" ")[2]


def children(running: Command) -> list[psutil.Process]:
    """Return the frontends, in the order of their numbers."""
    found = [child for child in psutil.Process(running.process.pid).children() if "--frontend-index" in child.cmdline()]
    return sorted(found, key=lambda child: child.cmdline()[child.cmdline().index("--frontend-index") + 1])


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """Open a session and yield the socket and its first event."""
    async with connect(f"{url.replace('http', 'ws')}/v1/realtime") as ws:
        async with asyncio.timeout(60):
            first: dict[str, Any] = json.loads(await ws.recv())
        yield ws, first


@pytest.mark.parametrize(("count", "accept"), [(1, "reuseport"), (2, "reuseport"), (2, "shared")])
async def test_frontends_admit_their_budgets_together_and_no_more(
    checkpoint: Path, tmp_path: Path, count: int, accept: str
) -> None:
    """FE-06, FE-08: 4 sessions in all. A refusal says that another connection may find room."""
    with frontends(checkpoint, tmp_path, count, "--accept", accept) as (running, url):
        assert len(children(running)) == (0 if count == 1 else count)
        async with contextlib.AsyncExitStack() as stack:
            admitted, refused = 0, 0
            async with asyncio.timeout(120):
                while admitted < 4:
                    _, event = await stack.enter_async_context(opened(url))
                    if event["type"] == "session.created":
                        admitted += 1
                    else:
                        assert event["error"]["code"] == "resource_exhausted"
                        assert event["error"]["retryable"] is True
                        refused += 1
            for _ in range(2 * count):
                _, event = await stack.enter_async_context(opened(url))
                assert event["type"] == "error"
        assert count > 1 or refused == 0
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200


async def test_a_killed_frontend_ends_the_server_and_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with frontends(checkpoint, tmp_path, 2, replicas=2) as (running, url):
        everybody = psutil.Process(running.process.pid).children(recursive=True)
        async with opened(url) as (_, event):
            assert event["type"] == "session.created"
            children(running)[0].kill()

            assert running.exit_code(90) == 1
        assert "frontend 0 ended with exit code -9" in running.text
        wait_until(lambda: all_gone(everybody), "every process to end", 30)


async def test_a_parent_that_is_killed_takes_its_frontends_along(checkpoint: Path, tmp_path: Path) -> None:
    with frontends(checkpoint, tmp_path, 2, replicas=2) as (running, _):
        everybody = psutil.Process(running.process.pid).children(recursive=True)

        running.process.kill()

        wait_until(lambda: all_gone(everybody), "every process to end", 30)


async def test_the_end_is_told_to_live_sessions_first(checkpoint: Path, tmp_path: Path) -> None:
    with frontends(checkpoint, tmp_path, 2, replicas=2) as (running, url):
        async with connect(f"{url.replace('http', 'ws')}/v1/duplex") as ws:
            assert json.loads(await ws.recv())["type"] == "session.created"

            running.process.terminate()

            async with asyncio.timeout(60):
                event = json.loads(await ws.recv())
                while event["type"] != "session.closed":
                    event = json.loads(await ws.recv())
                with pytest.raises(ConnectionClosed) as closed:
                    await ws.recv()
            assert event["reason"] == "shutdown"
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        assert running.exit_code(90) == 0


def test_a_taken_port_is_found_before_anything_is_loaded(checkpoint: Path, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        deploy = tmp_path / "deploy.yaml"
        deploy.write_text(DEPLOY.format(sessions=4, replicas=2))
        line = ["serve", str(checkpoint), "--deploy-config", str(deploy), "--port", port, "--api-server-count", "2"]
        with command(*line, log=tmp_path / "log") as running:
            assert running.exit_code(60) == 2
            assert "the port is taken" in running.text
            assert "loading" not in running.text


@pytest.mark.parametrize(
    ("count", "replicas", "text"),
    [(3, 2, "3 frontends are more than the 2 replica groups"), (2, 0, "replica_policy is legacy")],
    ids=["more frontends than groups", "legacy"],
)
def test_what_cannot_be_split_is_refused(checkpoint: Path, tmp_path: Path, count: int, replicas: int, text: str) -> None:
    """FE-02, FE-03."""
    line = ["serve", str(checkpoint), "--port", "0", "--api-server-count", str(count)]
    if replicas:
        deploy = tmp_path / "deploy.yaml"
        deploy.write_text(DEPLOY.format(sessions=4, replicas=replicas))
        line += ["--deploy-config", str(deploy)]
    with command(*line, log=tmp_path / "log") as running:
        assert running.exit_code(60) == 2
        assert text in running.text
