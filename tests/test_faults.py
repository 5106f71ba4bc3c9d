"""The fault matrix on real servers of two stages: what each fault costs the clients, what health says, and what is left.

Each row prints one line of the table. Faults that a server survives share one, whose stages are restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from omni_core.engine.stage_host import TIDY_S
from omni_core.testing.waiting import all_gone
from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

SOON_S = 60.0
"""Within this time a client hears of a fault that is noticed at once."""
SILENCE_S = 120.0
"""Within this time of one that is noticed by silence: by missing heartbeats, or the stall timeout."""
STALL_TIMEOUT_S = 8
HEARTBEAT_TIMEOUT_S = 24
"""So much longer than the stall timeout that clients hear of a stopped stage before it is replaced."""
BACK_S = 180.0
"""Within this time a stage is back on a busy machine."""


def _body(frames: int) -> dict[str, Any]:
    """Return a greedy request for exactly so many frames; without `min_tokens` a random model may end by chance."""
    sampling = [{"temperature": 0.0, "min_tokens": frames}, {}]
    return {"input": "Is anybody there?", "response_format": "pcm", "max_new_tokens": frames, "sampling_params_list": sampling}


SHORT = _body(12)
LONG = _body(4000)
ARGUMENTS = ("--restart", "on-failure", "--restart-backoff-s", "0.1", "--restart-max", "100")
ROLES = ("server", "fork server", "stage 0", "engine core", "stage 1")


PAUSE_S = 0.1
FAULTY = Path(__file__).parent / "faulty" / "faulty_connector.py"


def _until(condition: Callable[[], object], what: str, timeout_s: float = SOON_S) -> None:
    """Wait until `condition` holds; look rarely enough to leave the server its processor."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(PAUSE_S)


@dataclass
class Bench:
    """A running server, its processes by role, and clients in the middle of requests."""

    server: RunningServer
    traces: Any
    pool: ThreadPoolExecutor
    fault: Path = Path("/nonexistent")
    """What goes wrong with the connector (faulty/faulty_connector.py), while there is such a file."""
    expected: bytes = b""
    """The answer to SHORT."""
    at_start: list[str] = field(default_factory=list)

    def post(self, body: dict[str, Any], timeout_s: float = SOON_S) -> httpx.Response:
        """Ask for speech."""
        return httpx.post(f"{self.server.url}/v1/audio/speech", json=body, timeout=timeout_s)

    def process(self, role: str) -> psutil.Process:
        """Return the one process with a role."""
        found = [process for process in self.traces.processes() if _role(process, self.server.process.pid) == role]
        assert len(found) == 1, (role, found)
        return found[0]

    def roles(self) -> list[str]:
        """Return the roles of all processes."""
        return sorted(_role(process, self.server.process.pid) for process in self.traces.processes())

    def metric(self, name: str) -> float:
        """Return the sum of a series over its labels, or the one with the labels in `name`."""
        text = httpx.get(f"{self.server.url}/metrics", timeout=SOON_S).text
        starts = (f"{name} ", f"{name}{{")
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(starts))

    def _is_zero(self, name: str) -> bool:
        return self.metric(name) == 0

    def health(self) -> httpx.Response:
        """Ask for health."""
        return httpx.get(f"{self.server.url}/health", timeout=SOON_S)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no stage come back meanwhile, so that what is said while it is away can be looked at."""
        self.fault.write_text("hold")
        try:
            yield
        finally:
            self.fault.unlink()

    def begin(self, delivery: str, timeout_s: float) -> Future[str]:
        """Begin a request that would take minutes, and return how it ends for the client, once its audio has begun."""
        begun: Future[None] = Future()
        ending = self.pool.submit(self._ending, delivery, timeout_s, begun)
        if delivery == "whole":
            return ending
        begun.result(SOON_S)
        return ending

    def _ending(self, delivery: str, timeout_s: float, begun: Future[None]) -> str:
        if delivery == "whole":
            return _told(self.post(LONG, timeout_s))
        body = {**LONG, "stream_format": {"stream": "audio", "events": "sse"}[delivery]}
        url = f"{self.server.url}/v1/audio/speech"
        try:
            with httpx.stream("POST", url, json=body, timeout=timeout_s) as answer:
                data = b""
                for piece in answer.iter_bytes():
                    data += piece
                    if not begun.done():
                        begun.set_result(None)
        except httpx.RemoteProtocolError:
            return "cut off"
        if delivery == "stream":
            return f"a clean end behind {len(data)} bytes"
        last = json.loads(data.decode().strip().rsplit("data: ", 1)[1])
        return f"{last['type'].removeprefix('speech.audio.')} {last.get('error', {}).get('message', '')}"

    def begin_all(self, timeout_s: float = SOON_S) -> dict[str, Future[str]]:
        """Begin one request of each delivery, and return when all are in both stages."""
        endings = {delivery: self.begin(delivery, timeout_s) for delivery in ("stream", "events", "whole")}
        _until(lambda: self.metric("omni_stage_requests") == 2 * len(endings), "the requests to be in both stages")
        return endings

    def check_sound(self, data: bytes) -> None:
        """Check the samples of SHORT. Beside others and in other chunks they are rounded otherwise (test_load.py)."""
        found, expected = (np.frombuffer(pcm, "<i2").astype(int) for pcm in (data, self.expected))
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 2

    def check_whole(self) -> str:
        """Wait until the server is as it was, and return what there is to say of it."""
        _until(lambda: self.health().status_code == 200, "the server to be healthy", BACK_S)
        answer = self.post(SHORT, 60)
        assert answer.status_code == 200, answer.text
        self.check_sound(answer.content)
        for table in ("omni_requests_running", "omni_requests_waiting", "omni_stage_requests", "omni_transfer_in_flight"):
            _until(functools.partial(self._is_zero, table), f"{table} to be 0")
        _until(lambda: self.roles() == self.at_start, f"the processes {self.at_start}")
        _until(lambda: not self.traces.shared_memory(), "shared memory to be given back")
        return f"200, {len(self.at_start)} processes, nothing in /dev/shm"


def _role(process: psutil.Process, server: int) -> str:
    try:
        name, line = process.name(), " ".join(process.cmdline())
        if process.pid == server:
            return "server"
        if name.startswith("omni:"):
            return f"stage {name.split(':')[1]}"
        if "resource_tracker" in line:
            return "resource tracker"
        if "forkserver" not in line:
            return line
        return "fork server" if process.ppid() == server else "engine core"
    except psutil.NoSuchProcess:
        return "gone"


def _told(answer: httpx.Response) -> str:
    """Return status and message of an error answer, which must be an OpenAI error object."""
    assert answer.status_code >= 500, answer.status_code
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return f"{answer.status_code} {error['message']}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Note a row: the fault, what clients got, what health said, and what there is afterwards."""
    rows = ["| fault | client | seconds | health | afterwards |", "|---|---|---|---|---|"]
    path = tmp_path_factory.getbasetemp() / "faults.md"

    def note(fault: str, client: str, seconds: float | None, health: str, afterwards: str) -> None:
        took = "–" if seconds is None else f"{seconds:.1f}"
        rows.append(f"| {fault} | {client} | {took} | {health} | {afterwards} |")
        print(f"\n{rows[-1]}")
        path.write_text("\n".join(rows) + "\n")

    return note


@pytest.fixture(scope="module")
def bench(
    tiny: Callable[[str], Path], module_traces: Any, tmp_path_factory: pytest.TempPathFactory, plant: Callable[..., None]
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("faults")
    arguments = (*ARGUMENTS, "--stall-timeout", str(STALL_TIMEOUT_S), "--stage-heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S))
    plant(folder / "site", "faulty-connector", FAULTY.read_text())
    connector = ("--set", "connectors.connector_of_shared_memory.name=FaultyConnector")
    env = {**module_traces.env, "WORKSPACE_FAULT": str(folder / "fault"), "PYTHONPATH": str(folder / "site")}
    with (
        serve(tiny("custom_voice"), *arguments, *connector, log=folder / "serve.log", env=env) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        bench = Bench(server, module_traces, pool, folder / "fault")
        answer = bench.post(SHORT, 60)
        assert answer.status_code == 200, answer.text
        bench.expected, bench.at_start = answer.content, bench.roles()
        assert bench.at_start == sorted([*ROLES, "resource tracker"])
        yield bench


def _check_endings(endings: dict[str, Future[str]], mentions: str, status: int) -> float:
    """Check that every client was told, and return the seconds until the last one was."""
    began = time.monotonic()
    told = {delivery: ending.result(SILENCE_S) for delivery, ending in endings.items()}
    seconds = time.monotonic() - began
    assert told["stream"] == "cut off"
    assert told["events"].startswith("error ")
    assert told["whole"].startswith(f"{status} ")
    assert mentions in told["events"]
    assert mentions in told["whole"]
    return seconds


@pytest.mark.parametrize("phase", ["idle", "mid-stream"])
@pytest.mark.parametrize("role", ["stage 0", "engine core", "stage 1"])
def test_a_killed_stage_costs_the_requests_it_knew_and_is_restarted(
    bench: Bench, report: Callable[..., None], role: str, phase: str
) -> None:
    stage = role if role.startswith("stage") else "stage 0"
    endings = bench.begin_all() if phase == "mid-stream" else {}
    victims = [bench.process(role)]
    if stage == "stage 0":
        victims = [bench.process("stage 0"), bench.process("engine core")]

    client, seconds = "–", None
    with bench.held():
        bench.process(role).kill()

        if endings:
            seconds = _check_endings(endings, stage, 503)
            client = "stream cut off, events end with `error`, whole file 503"
        _until(lambda: bench.health().status_code == 503, "health to tell")
        assert f"{stage} " in bench.health().json()["reason"]
        refused = bench.post(SHORT)
    assert stage in _told(refused)
    assert "restarted" in _told(refused)
    assert int(refused.headers["retry-after"]) > 0
    _until(lambda: all_gone(victims), "the stage's processes to end")
    report(f"SIGKILL {role}, {phase}", client, seconds, "503, new requests 503, then 200", bench.check_whole())


def test_a_killed_fork_server_costs_nothing_and_the_next_stage_gets_a_new_one(
    bench: Bench, report: Callable[..., None]
) -> None:
    body = {**SHORT, "stream_format": "audio"}
    killed = bench.process("fork server")
    with httpx.stream("POST", f"{bench.server.url}/v1/audio/speech", json=body, timeout=60) as answer:
        pieces = answer.iter_bytes()
        data = next(pieces)

        killed.kill()

        data += b"".join(pieces)
    bench.check_sound(data)
    assert bench.health().status_code == 200
    with bench.held():
        bench.process("stage 1").kill()
        _until(lambda: bench.health().status_code == 503, "health to tell")
    afterwards = bench.check_whole()
    assert bench.process("fork server").pid != killed.pid
    report("SIGKILL fork server, mid-stream; then stage 1", "the whole stream", None, "200; 503, then 200", afterwards)


@pytest.mark.parametrize("role", ["stage 0", "engine core", "stage 1"])
def test_a_stopped_stage_is_noticed_by_its_silence_and_restarted(bench: Bench, report: Callable[..., None], role: str) -> None:
    endings = bench.begin_all(SILENCE_S)
    stopped = bench.process(role)

    with bench.held():
        stopped.send_signal(signal.SIGSTOP)

        seconds = _check_endings(endings, "stage 1 " if role == "stage 1" else "stage 0 ", 504)
        _until(lambda: bench.health().status_code == 503, "health to tell", SILENCE_S)
        assert "silent" in bench.health().json()["reason"]
    _until(lambda: all_gone([stopped]), "the stopped process to be killed")
    client = "stream cut off, events end with `error`, whole file 504"
    report(
        f"SIGSTOP {role}, mid-stream",
        client,
        seconds,
        f"503 after {HEARTBEAT_TIMEOUT_S} s of silence, then 200",
        bench.check_whole(),
    )


def test_an_engine_core_that_stops_for_a_while_fails_what_waits_for_it(bench: Bench, report: Callable[..., None]) -> None:
    endings = bench.begin_all(SILENCE_S)
    core = bench.process("engine core")

    core.send_signal(signal.SIGSTOP)
    try:
        seconds = _check_endings(endings, "stage 0 ", 504)
    finally:
        core.send_signal(signal.SIGCONT)
    client = "stream cut off, events end with `error`, whole file 504"
    report("SIGSTOP engine core, then SIGCONT", client, seconds, "200", bench.check_whole())


@pytest.mark.parametrize(
    ("fault", "said"),
    [("full", "there is no memory for a payload: [Errno 27] File too large"), ("drop", "fetched or cleaned up before")],
    ids=["no shared memory", "a lost chunk"],
)
def test_a_fault_between_two_stages_costs_the_requests_that_meet_it(
    bench: Bench, report: Callable[..., None], fault: str, said: str
) -> None:
    """B09, B17."""
    bench.fault.write_text(fault)
    began = time.monotonic()
    try:
        endings = {delivery: bench.begin(delivery, SOON_S) for delivery in ("whole", "events") if fault == "drop"}
        endings = endings or {"whole": bench.begin("whole", SOON_S)}
        told = {delivery: ending.result(SOON_S) for delivery, ending in endings.items()}
        seconds = time.monotonic() - began
        # What a stage's own work needs no memory for goes on.
        assert bench.health().status_code == 200
    finally:
        bench.fault.unlink()

    assert told["whole"].startswith("500 "), told
    assert all(said in text for text in told.values()), told
    client = "whole file 500" + (", events end with `error`" if "events" in told else "")
    what = {"full": "the kernel refuses shared memory", "drop": "a chunk is lost between the stages"}[fault]
    report(f"{what}, mid-stream" if fault == "drop" else what, client, seconds, "200", bench.check_whole())


class Leaver:
    """Clients that go away."""

    def __init__(self, url: str) -> None:
        self.address = (httpx.URL(url).host, httpx.URL(url).port)

    def leave(self, moment: str, delivery: str) -> None:
        """Send a request and go away at a moment, without a word (RST) where anything is unread."""
        body = json.dumps({**LONG, **({} if delivery == "whole" else {"stream_format": delivery})}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.create_connection(self.address, SOON_S) as client:
            client.settimeout(SOON_S)
            if moment == "in its head":
                client.sendall(head[:40].encode())
                return
            client.sendall(f"{head}\r\n\r\n".encode() + (body[:20] if moment == "in its body" else body))
            if moment == "half closed":
                client.shutdown(socket.SHUT_WR)
            for _ in range({"after the first piece": 1, "later": 12}.get(moment, 0)):
                assert client.recv(2000)


@pytest.mark.parametrize("delivery", ["whole", "audio", "sse"])
def test_a_client_that_leaves_at_any_moment_leaves_nothing(bench: Bench, report: Callable[..., None], delivery: str) -> None:
    moments = ["in its head", "in its body", "behind its body", "half closed"]
    moments += [] if delivery == "whole" else ["after the first piece", "later"]
    leaver = Leaver(bench.server.url)
    for moment in moments:
        list(bench.pool.map(lambda _, moment=moment: leaver.leave(moment, delivery), range(8)))

        _until(lambda: bench.metric("omni_requests_running") == 0, f"requests whose client left {moment} to end")
    report(f"clients leave, {delivery}, 8 at each of {len(moments)} moments", "–", None, "200", bench.check_whole())


def test_a_thousand_aborts_leave_every_table_and_the_memory_as_they_were(bench: Bench, report: Callable[..., None]) -> None:
    def memory() -> dict[str, int]:
        return {role: bench.process(role).memory_info().rss for role in ROLES}

    def descriptors() -> dict[str, int]:
        return {role: bench.process(role).num_fds() for role in ROLES}

    began = bench.metric('omni_requests_total{reason="abort"}')
    asyncio.run(_abort_many(bench.server.url, 400))
    bench.check_whole()
    before, files = memory(), descriptors()
    asyncio.run(_abort_many(bench.server.url, 600))
    afterwards = bench.check_whole()

    def growth() -> dict[str, float]:
        return {role: rss / before[role] - 1 for role, rss in memory().items()}

    deadline = time.monotonic() + 2 * TIDY_S  # a stage gives back what it does not need from time to time
    while max((grown := growth()).values()) > 0.05 and time.monotonic() < deadline:
        time.sleep(1.0)
    assert {role: share for role, share in grown.items() if share > 0.05} == {}
    # Connections that the client has closed may take the server a moment.
    _until(lambda: all(count <= files[role] + 2 for role, count in descriptors().items()), f"descriptors {files}")
    aborted = bench.metric('omni_requests_total{reason="abort"}') - began
    assert aborted >= 250, "every fourth client leaves behind its first piece"
    worst = max(grown, key=lambda role: grown[role])
    report(
        f"1,000 clients leave, {aborted:.0f} of them while stages worked",
        "–",
        None,
        "200",
        f"{afterwards}; RSS {grown[worst]:+.1%} at most ({worst}) over the last 600",
    )


async def _abort_many(url: str, count: int) -> None:
    """Send requests, 16 at a time, and leave: after up to 50 ms, or after the first piece for every fourth."""
    room = asyncio.Semaphore(16)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        limit_s = None if number % 4 == 0 else 0.05 * (number % 7) / 7
        body = {**LONG, "stream_format": "audio", "seed": number}
        with contextlib.suppress(TimeoutError):
            async with (
                room,
                asyncio.timeout(limit_s),
                client.stream("POST", "/v1/audio/speech", json=body) as answer,
            ):
                await anext(answer.aiter_bytes())

    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(one(client, number) for number in range(count)))


def test_the_server_killed_mid_stream_leaves_nothing(bench: Bench, report: Callable[..., None]) -> None:
    """The last of those that share a server."""
    endings = {"stream": bench.begin("stream", SOON_S), "events": bench.begin("events", SOON_S)}

    bench.server.process.kill()

    began = time.monotonic()
    assert {ending.result(SOON_S) for ending in endings.values()} == {"cut off"}
    seconds = time.monotonic() - began
    bench.server.process.wait(10)
    bench.traces.wait_until_gone()
    report("SIGKILL server, mid-stream", "stream and events cut off", seconds, "–", "no process, no shm, no file")


def test_a_stage_killed_without_restarts_stays_dead_and_the_server_killed_idle_leaves_nothing(
    tiny: Callable[[str], Path], traces: Any, tmp_path: Path, report: Callable[..., None]
) -> None:
    with (
        serve(tiny("custom_voice"), log=tmp_path / "serve.log", env=traces.env) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        bench = Bench(server, traces, pool)
        endings = bench.begin_all()

        bench.process("stage 1").kill()

        seconds = _check_endings(endings, "stage 1", 503)
        assert bench.health().status_code == 503
        assert "stage 1 (code2wav) is dead" in bench.health().json()["reason"]
        assert "restart the server" in _told(bench.post(SHORT))
        client = "stream cut off, events end with `error`, whole file 503"
        report("SIGKILL stage 1, mid-stream, `restart: never`", client, seconds, "503, new requests 503", "dead for good")

        server.process.kill()

        server.process.wait(10)
        traces.wait_until_gone()
        report("SIGKILL server, idle", "–", None, "–", "no process, no shm, no file")


@contextlib.contextmanager
def _starting(model: Path, traces: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a server and give it once both stages load."""
    command = [sys.executable, "-m", "omni_core", "serve", str(model), "--port", "0"]
    environment = {**os.environ, **traces.env}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            wanted = {"stage 0", "stage 1"}
            _until(lambda: wanted <= {_role(process, server.pid) for process in traces.processes()}, "both stages to load", 240)
            yield server
        finally:
            server.kill()


def test_a_server_without_shared_memory_for_an_edge_says_so_and_ends(
    tiny: Callable[[str], Path], traces: Any, report: Callable[..., None]
) -> None:
    """B17."""
    # The kernel refuses memory above the limit as it does where the machine's is full.
    limited = [
        "prlimit",
        f"--fsize={32 << 20}",
        sys.executable,
        "-m",
        "omni_core",
        "serve",
        str(tiny("custom_voice")),
        "--port",
        "0",
    ]
    began = time.monotonic()

    ended = subprocess.run(limited, capture_output=True, text=True, env={**os.environ, **traces.env}, timeout=240, check=False)

    assert ended.returncode == 1, ended.stderr
    said = ended.stderr[ended.stderr.index("error: ") :].splitlines()[0]
    assert "there is no shared memory of 64 MiB for the edge" in said
    traces.wait_until_gone()
    seconds = time.monotonic() - began
    report("no shared memory at the start", f"exit 1: {said}", seconds, "–", "no process, no shm, no file")


@pytest.mark.parametrize("role", ["stage 0", "stage 1", "server"])
def test_a_process_killed_while_it_loads_ends_the_start(
    tiny: Callable[[str], Path], traces: Any, report: Callable[..., None], role: str
) -> None:
    with _starting(tiny("custom_voice"), traces) as server:
        victim = next(process for process in traces.processes() if _role(process, server.pid) == role)

        victim.kill()

        began = time.monotonic()
        output, errors = server.communicate(timeout=SOON_S)
        seconds = time.monotonic() - began
    assert "Listening" not in output
    if role == "server":
        assert server.returncode == -signal.SIGKILL
        said = "killed"
    else:
        assert server.returncode == 1
        said = errors[errors.index("error: ") :].splitlines()[0]
        assert f"{role} " in said
        # The decoder may be ready before it is met here; the talker takes longer.
        assert re.search("SIGKILL while it started|died before the others were ready: .* SIGKILL", said)
    traces.wait_until_gone()
    report(f"SIGKILL {role}, loading", f"exit {server.returncode}: {said}", seconds, "–", "no process, no shm, no file")
