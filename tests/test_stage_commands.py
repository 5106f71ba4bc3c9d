"""The seed's commands, one for each stage: a head and a worker on one machine, then on hosts of their own (SB-01 to SB-11)."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from omni_connectors.testing import mooncake_master, why_no_mooncake
from omni_core.engine.remote.messages import PROTOCOL
from omni_core.testing.hosts import reserved_port
from omni_core.testing.network import Host, network
from omni_core.testing.waiting import wait_until
from omni_server.testing import Command, assert_same_sound, command, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

READY = "Listening on "
TOKEN = "a secret of these tests"
PORT = "26000"
SOON_S = 20.0


def _body(frames: int) -> dict[str, Any]:
    """Return a greedy request for exactly so many frames."""
    sampling = [{"temperature": 0.0, "min_tokens": frames}, {}]
    return {"input": "Is anybody there?", "response_format": "pcm", "max_new_tokens": frames, "sampling_params_list": sampling}


SPEECH = _body(60)
LONG = _body(300)


def ask(url: str, body: dict[str, Any] = SPEECH) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=90.0)


@contextlib.contextmanager
def streaming(url: str) -> Iterator[Iterator[bytes]]:
    """Ask for LONG and yield its pieces as they come."""
    body = {**LONG, "stream_format": "audio"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=90.0) as answer:
        assert answer.status_code == 200
        yield answer.iter_bytes()


def health(url: str) -> int:
    return httpx.get(f"{url}/health", timeout=SOON_S).status_code


@pytest.fixture(scope="module")
def checkpoint(tiny: Callable[[str], Path]) -> str:
    return str(tiny("custom_voice"))


@pytest.fixture(scope="module")
def golden(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a server of the usual kind answers, which starts both stages itself."""
    log = tmp_path_factory.mktemp("golden") / "log"
    with serve(checkpoint, log=log, env={"OMP_NUM_THREADS": "1"}) as server:
        answer = ask(server.url)
        assert answer.status_code == 200, answer.text
        return answer.content


class Starter:
    """Start commands of one pipeline, each with a log of its own."""

    def __init__(self, model: str, folder: Path, env: dict[str, str]) -> None:
        self.model = model
        self.folder = folder
        self.env = env
        self.stack = contextlib.ExitStack()
        self.count = 0

    def start(
        self, line: str, *, prefix: list[str] | None = None, program: tuple[str, str] = ("-m", "omni_core"), **env: str
    ) -> Command:
        """Start `omni serve MODEL LINE`."""
        self.count += 1
        log = self.folder / f"{self.count}.log"
        words = ["serve", self.model, *line.split()]
        starting = command(*words, log=log, env={**self.env, **env}, prefix=prefix or [], program=program)
        return self.stack.enter_context(starting)


@pytest.fixture
def starter(checkpoint: str, tmp_path: Path, traces: Any) -> Iterator[Starter]:
    """Start commands; at the end they are stopped, and nothing of them may be left."""
    found = Starter(checkpoint, tmp_path, traces.env)
    with found.stack:
        yield found
    traces.wait_until_gone(20.0)


def test_two_commands_on_one_machine_speak_and_survive_each_others_end(starter: Starter, golden: bytes) -> None:
    """SB-01, SB-08, SB-09, SB-11, B11: as in the seed, with CUDA_VISIBLE_DEVICES, on a machine without GPUs."""
    port, master = (starter.stack.enter_context(reserved_port()) for _ in range(2))
    url = f"http://127.0.0.1:{port}"
    at = f"--omni-master-address 127.0.0.1 --omni-master-port {master}"
    head_line = f"--port {port} --stage-id 0 {at}"
    worker_line = f"--stage-id 1 --headless {at} --omni-head-timeout 60 --max-num-seqs 4"

    head = starter.start(head_line, CUDA_VISIBLE_DEVICES="0")
    worker = starter.start(worker_line, CUDA_VISIBLE_DEVICES="1")
    head.wait_for(READY)
    assert_same_sound(ask(url).content, golden)

    # The worker is killed, and another one takes its place.
    worker.stop(signal.SIGKILL)
    wait_until(lambda: health(url) == 503, "health to tell", SOON_S)
    refused = ask(url)
    assert refused.status_code == 503
    assert "stage 1 (code2wav) is dead" in refused.text
    worker = starter.start(worker_line)
    wait_until(lambda: health(url) == 200, "the new worker", 240.0)
    assert_same_sound(ask(url).content, golden)

    # The head is killed, and another one finds the worker, whose stage is not loaded again.
    loaded = _stage_process(worker, 1)
    head.stop(signal.SIGKILL)
    worker.wait_for("is gone; waiting 60 s for it")
    head = starter.start(head_line)
    head.wait_for(READY)
    assert_same_sound(ask(url).content, golden)
    assert _stage_process(worker, 1) == loaded

    # The worker is told to stop in the middle of a request, which ends as ever.
    long = ask(url, LONG).content
    with streaming(url) as pieces:
        heard = next(pieces)
        with suspended(_stage_process(head, 0)):
            worker.process.send_signal(signal.SIGTERM)
            head.wait_for("stage 1 (code2wav) leaves")
            assert "stage 1 (code2wav) takes no new requests" in ask(url).text
            assert "stage 1 (code2wav) is leaving" in httpx.get(f"{url}/health", timeout=SOON_S).text
        assert_same_sound(heard + b"".join(pieces), long)
    assert worker.exit_code() == 0
    head.wait_for("stage 1 (code2wav) has left")
    assert head.stop() == 0


def _stage_process(started: Command, stage: int) -> psutil.Process:
    children = psutil.Process(started.process.pid).children(recursive=True)
    (found,) = [child for child in children if child.name().startswith(f"omni:{stage}")]
    return found


@contextlib.contextmanager
def suspended(stage: psutil.Process) -> Iterator[None]:
    """Let a stage make nothing meanwhile, so that a request does not end before what is looked at during it."""
    stage.suspend()
    try:
        yield
    finally:
        stage.resume()


def test_worker_ends_when_its_head_does_not_come_back(starter: Starter) -> None:
    """SB-09, and B11: a wrong port ends with a message that names it."""
    port = starter.stack.enter_context(reserved_port())
    worker = starter.start(
        f"--stage-id 1 --headless --omni-master-address 127.0.0.1 --omni-master-port {port} --omni-head-timeout 2"
    )

    assert worker.exit_code() == 1
    assert f"stage 1 found no head at 127.0.0.1:{port} within 2 s" in worker.text
    assert "--omni-master-port" in worker.text


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[list[Host]]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(network(request.param))
        except OSError as error:
            pytest.skip(str(error))
        yield found


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_two_hosts_speak_and_a_pulled_cable_costs_what_it_must(starter: Starter, golden: bytes, hosts: list[Host]) -> None:
    """A short cut is not heard; a long one ends the request at once when it is noticed, and the worker comes back by itself."""
    one, two = hosts
    url = f"http://{one.address}:8091"
    at = f"--omni-master-address {one.address} --omni-master-port {PORT} --omni-heartbeat-timeout 6"
    head = starter.start(f"--host {one.address} --port 8091 --stage-id 0 {at}", prefix=one.prefix, OMNI_TOKEN=TOKEN)
    worker = starter.start(
        f"--stage-id 1 --headless --omni-replica-address {two.address} {at}", prefix=two.prefix, OMNI_TOKEN=TOKEN
    )
    head.wait_for(READY)
    assert two.address in head.wait_for("registered")
    assert_same_sound(ask(url).content, golden)
    long = ask(url, LONG).content

    # Shorter than the heartbeat timeout: the stream stands still and goes on.
    with streaming(url) as pieces:
        heard = next(pieces)
        two.pull_cable()
        time.sleep(2.0)  # what is waited for is the absence of a reaction
        two.plug_cable()
        assert_same_sound(heard + b"".join(pieces), long)

    # Longer: the stream ends with the stage, and the stage comes back with the cable.
    with streaming(url) as pieces:
        next(pieces)
        with suspended(_stage_process(head, 0)):
            two.pull_cable()
        wait_until(lambda: health(url) == 503, "the head to notice", SOON_S + 10)
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    refused = ask(url)
    assert refused.status_code == 503
    assert re.search(r"stage 1 \(code2wav\) is dead: it (lost its worker on .*|was silent for 6 s)", refused.text)
    worker.wait_for("is gone; waiting", 60.0)
    two.plug_cable()
    wait_until(lambda: health(url) == 200, "the worker to come back", 120.0)
    assert_same_sound(ask(url).content, golden)
    assert "ready in" in worker.wait_for("stage 1 (code2wav) ready")
    assert worker.text.count("stage 1 (code2wav) ready in") == 1


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_three_hosts_speak_with_every_stage_headless(starter: Starter, golden: bytes, hosts: list[Host]) -> None:
    """SB-02, SB-10: the head runs no stage; the same sound as from one process."""
    one, two, three = hosts
    at = f"--omni-master-address {one.address} --omni-master-port {PORT}"
    (starter.folder / "token").write_text(TOKEN)
    token = f"--omni-token @{starter.folder / 'token'}"
    workers = [
        starter.start(f"--stage-id {stage} --headless {at} {token}", prefix=host.prefix)
        for stage, host in enumerate((two, three))
    ]
    head = starter.start(f"--host {one.address} --port 8091 --stage-id none {at} {token}", prefix=one.prefix)
    head.wait_for(READY)

    assert_same_sound(ask(f"http://{one.address}:8091").content, golden)

    assert [worker.stop() for worker in workers] == [0, 0]
    assert health(f"http://{one.address}:8091") == 503
    assert TOKEN not in head.text


OTHER_VERSION = "import sys, omni_core; omni_core.__version__ = '99.0'; from omni_core.cli import main; sys.exit(main())"


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_worker_of_another_host_is_refused_with_the_reason_on_both_sides(starter: Starter, hosts: list[Host]) -> None:
    """SB-04, SB-10: wrong token, version and YAML; the head goes on waiting for the right one."""
    one, two = hosts
    at = f"--omni-master-address {one.address} --omni-master-port {PORT}"
    head = starter.start(f"--host {one.address} --port 8091 --stage-id none {at}", prefix=one.prefix, OMNI_TOKEN=TOKEN)
    (starter.folder / "wrong.yaml").write_text(
        "base_config: qwen3_tts.yaml\nconnectors: {connector_of_shared_memory: {extra: {codec_chunk_frames: 10}}}\n"
    )
    line = f"--stage-id 1 --headless {at}"
    head.wait_for("listens for workers")

    wrong_token = starter.start(line, prefix=two.prefix, OMNI_TOKEN="another secret")
    no_token = starter.start(line, prefix=two.prefix)
    wrong_yaml = starter.start(f"{line} --deploy-config {starter.folder / 'wrong.yaml'}", prefix=two.prefix, OMNI_TOKEN=TOKEN)
    other_version = starter.start(line, prefix=two.prefix, program=("-c", OTHER_VERSION), OMNI_TOKEN=TOKEN)

    assert [refused.exit_code() for refused in (wrong_token, no_token, wrong_yaml, other_version)] == [2, 2, 2, 2]
    assert "the worker's token is not the head's" in wrong_token.text
    assert "there is no token" in no_token.text
    assert "the worker's deployment differs from the head's" in wrong_yaml.text
    assert "codec_chunk_frames" in wrong_yaml.text
    assert f"its version is not this worker's: it speaks protocol {PROTOCOL} of Omni 0.1.0" in other_version.text
    head.wait_for(f"the worker's version is not the head's: it speaks protocol {PROTOCOL} of Omni 99.0")
    head.wait_for("the worker's token is not the head's")
    assert "codec_chunk_frames" in head.wait_for("the worker's deployment differs")
    assert two.address in head.text
    assert head.process.poll() is None


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_hosts_that_share_no_folder_need_a_connector_that_crosses_hosts(
    starter: Starter, golden: bytes, hosts: list[Host], tmp_path: Path
) -> None:
    """Over shared memory the worker is refused with the way out; over a Mooncake store it speaks, with no host in the file."""
    if reason := why_no_mooncake():
        pytest.skip(reason)
    one, two = hosts
    at = f"--omni-master-address {one.address} --omni-master-port {PORT}"
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(mooncake_master(tmp_path, host=one.gateway))
        # What makes it another host: a folder for temporary files of its own.
        own = stack.enter_context(tempfile.TemporaryDirectory(prefix="ws-"))
        head = starter.start(f"--host {one.address} --port 8091 --stage-id 0 {at}", prefix=one.prefix, OMNI_TOKEN=TOKEN)
        refused = starter.start(f"--stage-id 1 --headless {at}", prefix=two.prefix, OMNI_TOKEN=TOKEN, TMPDIR=own)
        assert refused.exit_code(240.0) == 2
        assert "which works within one host" in refused.text
        assert "MooncakeStoreConnector" in refused.text
        head.wait_for("which works within one host")
        head.stop()

        deploy = f"--deploy-config {_over_store(tmp_path, master.options())}"
        head = starter.start(
            f"--host {one.address} --port 8091 --stage-id 0 {at} {deploy}", prefix=one.prefix, OMNI_TOKEN=TOKEN
        )
        worker = starter.start(f"--stage-id 1 --headless {at} {deploy}", prefix=two.prefix, OMNI_TOKEN=TOKEN, TMPDIR=own)
        head.wait_for(READY)
        assert_same_sound(ask(f"http://{one.address}:8091").content, golden)
        assert head.stop() == 0
        assert worker.stop() == 0


def _over_store(folder: Path, options: dict[str, Any]) -> Path:
    """Write an overlay of the bundled file with a store between the stages, and without the address of any host of them."""
    extra = {key: value for key, value in options.items() if key != "host"}
    extra |= {"codec_streaming": True, "codec_chunk_frames": 25, "initial_codec_chunk_frames": 1}
    stages = [
        {"stage_id": 0, "output_connectors": {"to_stage_1": "store"}},
        {"stage_id": 1, "input_connectors": {"from_stage_0": "store"}},
    ]
    connectors = {"store": {"name": "MooncakeStoreConnector", "extra": extra}}
    path = folder / "store.yaml"
    path.write_text(json.dumps({"base_config": "qwen3_tts.yaml", "connectors": connectors, "stages": stages}))
    return path
