"""`omni serve` as a process, with a fake engine behind it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from omni_server import listening

SCRIPT = """
import argparse, asyncio, signal, sys
from omni_core.errors import OmniError, StageStartError
from omni_server.fake_engine import FakeEngine
from omni_server.serve import ServeCommand

class Engine(FakeEngine):
    async def start(self):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.go_on.set)
        await super().start()

def make(args):
    failure = StageStartError("the weights are cut off", where="stage 0 (talker)")
    return Engine(start_error=failure if "fail" in args.model else None, start_forever="forever" in args.model)

parser = argparse.ArgumentParser("omni serve")
command = ServeCommand(make)
command.configure(parser)
try:
    sys.exit(command.run(parser.parse_args()))
except OmniError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""
PATIENCE_S = 60.0


class Server:
    """A server process, its two streams read line by line."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        pipe = subprocess.PIPE
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)
        self.log: list[str] = []
        self._lines: dict[str, queue.Queue[str | None]] = {"stdout": queue.Queue(), "stderr": queue.Queue()}
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._lines]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            self._lines[name].put(line.rstrip("\n"))
        self._lines[name].put(None)

    def wait_for(self, text: str, stream: str = "stderr") -> str:
        """Return the next line with `text`."""
        while (line := self._lines[stream].get(timeout=PATIENCE_S)) is not None:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came:\n" + "\n".join(self.log))

    def ready(self) -> str:
        """Wait for the ready line and return the URL."""
        return self.wait_for("Listening on ", "stdout").removeprefix("Listening on ")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, list[str], list[str]]:
        """Wait for the end and return the exit code and what is left of stdout and stderr."""
        code = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        left = [list(iter(lines.get_nowait, None)) for lines in self._lines.values()]
        return code, left[0], left[1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def run(*arguments: str) -> Server:
        servers.append(Server(*arguments))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start("org/fake-tts", "--port", "0")


def stream(url: str, text: str, **fields: Any) -> Any:
    return httpx.stream("POST", f"{url}/v1/audio/speech", json={"input": text, **fields}, timeout=PATIENCE_S, trust_env=False)


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", timeout=PATIENCE_S, trust_env=False)


def speak(url: str, text: str, **fields: Any) -> httpx.Response:
    body = {"input": text, **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=PATIENCE_S, trust_env=False)


@contextlib.contextmanager
def talking(server: Server) -> Iterator[Any]:
    """Open a socket on which text is spoken, and configure it."""
    url = server.ready().replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with connect(url, open_timeout=PATIENCE_S, proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
        yield socket


def until_closed(socket: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the events until the server closes, without audio, and the close code."""
    found = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = socket.recv(PATIENCE_S)
            if isinstance(message, str):
                found.append(json.loads(message))
    return found, socket.protocol.close_code


class TestStart:
    """From the command to the ready line."""

    def test_ready_line_is_all_of_stdout(self, server: Server) -> None:
        url = server.ready()

        assert url.startswith("http://127.0.0.1:")
        assert speak(url, "hello", model="fake-tts").status_code == 200
        server.signal(signal.SIGTERM)
        code, stdout, _ = server.ended()
        assert (code, stdout) == (0, [])

    def test_taken_port_is_found_before_the_engine_starts(self, start: Callable[..., Server]) -> None:
        with listening.bind("127.0.0.1", 0, None) as sock:
            code, stdout, stderr = start("m", "--port", str(sock.getsockname()[1])).ended()

        assert (code, stdout) == (2, [])
        assert "the port is taken" in stderr[-1]
        assert not any("stage fake ready" in line for line in stderr)

    def test_stage_that_does_not_start_ends_the_command(self, start: Callable[..., Server]) -> None:
        code, stdout, stderr = start("fail", "--port", "0").ended()

        assert (code, stdout) == (1, [])
        assert stderr[-1].startswith("error: stage 0 (talker): the weights are cut off")
        assert any("fake engine closed" in line for line in stderr)
        assert not any("Traceback" in line for line in stderr)

    def test_five_servers_at_once_get_five_ports(self, start: Callable[..., Server]) -> None:
        """E12."""
        servers = [start("m", "--port", "0") for _ in range(5)]

        urls = [server.ready() for server in servers]

        assert len(set(urls)) == 5
        assert all(get(url, "/health").status_code == 200 for url in urls)

    def test_unix_socket(self, start: Callable[..., Server], tmp_path: Path) -> None:
        path = tmp_path / "omni.sock"
        server = start("m", "--uds", str(path))
        assert server.ready() == f"unix:{path}"

        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE_S) as client:
            assert client.get("http://omni/health").json() == {"status": "healthy"}

        server.signal(signal.SIGTERM)
        assert server.ended()[0] == 0
        assert not path.exists()

    def test_root_path_is_taken_off(self, start: Callable[..., Server]) -> None:
        server = start("m", "--port", "0", "--root-path", "/omni", "--api-key", "one")
        url = server.ready()

        assert get(url, "/health").status_code == 200
        assert get(url, "/v1/models").status_code == 401


class TestSockets:
    """WebSockets through the real HTTP server."""

    def test_sentences_arrive_while_text_is_sent(self, server: Server) -> None:
        url = server.ready().replace("http", "ws", 1) + "/v1/audio/speech/stream"

        with connect(url, open_timeout=PATIENCE_S, proxy=None) as socket:
            socket.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
            socket.send(json.dumps({"type": "input.text", "text": "wait-later is this. Then"}))
            begun = [socket.recv(PATIENCE_S) for _ in range(2)]
            server.signal(signal.SIGUSR1)  # lets the request go on
            socket.send(json.dumps({"type": "session.close"}))
            rest = list(socket)

        assert json.loads(begun[0])["sentence_text"] == "wait-later is this. "
        assert len(begun[1]) == 2 * 5 * 1920
        assert json.loads(rest[-1]) == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}

    def test_client_that_leaves_aborts_its_request(self, server: Server) -> None:
        url = server.ready().replace("http", "ws", 1) + "/v1/audio/speech/stream"

        with connect(url, open_timeout=PATIENCE_S, proxy=None) as socket:
            socket.send(json.dumps({"type": "session.config"}))
            socket.send(json.dumps({"type": "input.text", "text": "endless is this. Then"}))
            socket.recv(PATIENCE_S)
            socket.socket.close()  # without a close frame

        server.wait_for("aborted speech-")

    def test_sigterm_lets_the_utterance_that_is_spoken_end(self, server: Server) -> None:
        with talking(server) as socket:
            socket.send(json.dumps({"type": "input.text", "text": "wait-later is this. Then"}))
            begun = [socket.recv(PATIENCE_S) for _ in range(2)]
            server.signal(signal.SIGTERM)
            server.wait_for("stopping")
            socket.send(json.dumps({"type": "input.text", "text": " came more."}))
            socket.send(json.dumps({"type": "input.done"}))
            socket.send(json.dumps({"type": "input.text", "text": "Another one."}))
            refused = json.loads(socket.recv(PATIENCE_S))
            server.signal(signal.SIGUSR1)  # lets the request go on
            rest, code = until_closed(socket)

        assert json.loads(begun[0])["sentence_text"] == "wait-later is this. "
        assert (refused["type"], refused["error"]["code"]) == ("error", "server_stopping")
        assert [event["sentence_text"] for event in rest if event["type"] == "audio.start"] == ["Then came more."]
        assert rest[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
        assert code == 1012
        exit_code, _, stderr = server.ended()
        assert exit_code == 0
        assert not any("aborted" in line or "Traceback" in line for line in stderr)

    def test_sigterm_closes_a_socket_on_which_nothing_is_spoken(self, server: Server) -> None:
        with talking(server) as socket:
            socket.send(json.dumps({"type": "input.text", "text": "One."}))
            socket.send(json.dumps({"type": "input.done"}))
            while '"session.done"' not in str(socket.recv(PATIENCE_S)):
                pass
            server.signal(signal.SIGTERM)
            rest, code = until_closed(socket)

        assert (rest, code) == ([], 1012)
        assert server.ended()[0] == 0

    def test_what_is_not_spoken_in_time_is_cut_off_and_the_client_hears_so(self, start: Callable[..., Server]) -> None:
        server = start("org/fake-tts", "--port", "0", "--shutdown-timeout", "0.2")
        with talking(server) as socket:
            socket.send(json.dumps({"type": "input.text", "text": "stall is this. Then"}))
            socket.recv(PATIENCE_S)
            server.signal(signal.SIGTERM)
            rest, code = until_closed(socket)

        assert [(event["type"], event["error"]["code"]) for event in rest] == [("error", "server_stopping")]
        assert code == 1012
        exit_code, _, stderr = server.ended()
        assert exit_code == 0
        assert any("is cut off" in line for line in stderr)
        assert not any("Traceback" in line for line in stderr)


class TestStop:
    """From the signal to the exit code."""

    def test_sigterm_lets_running_requests_end(self, server: Server) -> None:
        url = server.ready()
        with stream(url, "wait-later", stream_format="audio", response_format="pcm") as response:
            pieces = response.iter_bytes()
            first = next(pieces)
            server.signal(signal.SIGTERM)
            server.wait_for("stopping")

            server.signal(signal.SIGUSR1)  # lets the request go on

            assert len(first + b"".join(pieces)) == 2 * 5 * 1920
        code, _, stderr = server.ended()
        assert code == 0
        assert any("fake engine closed" in line for line in stderr)
        assert not any("aborted" in line for line in stderr)

    def test_requests_that_do_not_end_are_cut_off(self, start: Callable[..., Server]) -> None:
        server = start("m", "--port", "0", "--shutdown-timeout", "0.2")
        with stream(server.ready(), "stall-later", stream_format="audio") as response:
            pieces = response.iter_bytes()
            next(pieces)
            server.signal(signal.SIGTERM)

            with pytest.raises(httpx.RemoteProtocolError):
                next(pieces)

        code, _, stderr = server.ended()
        assert code == 0
        assert any("is cut off" in line for line in stderr)
        assert any("aborted" in line for line in stderr)
        assert not any("Traceback" in line for line in stderr)

    def test_second_signal_kills(self, server: Server) -> None:
        with stream(server.ready(), "stall-later", stream_format="audio") as response:
            next(response.iter_bytes())
            server.signal(signal.SIGTERM)
            server.wait_for("stopping")

            server.signal(signal.SIGTERM)

            assert server.process.wait(PATIENCE_S) == -signal.SIGTERM

    def test_sigint_is_exit_code_130(self, server: Server) -> None:
        server.ready()

        server.signal(signal.SIGINT)

        code, _, stderr = server.ended()
        assert code == 130
        assert not any("Traceback" in line for line in stderr)

    def test_sigterm_while_starting_ends_the_engine(self, start: Callable[..., Server]) -> None:
        server = start("forever", "--port", "0")
        server.wait_for("stage fake ready")

        server.signal(signal.SIGTERM)

        code, stdout, stderr = server.ended()
        assert (code, stdout) == (0, [])
        assert any("fake engine closed" in line for line in stderr)


class TestConnections:
    """Clients over real sockets."""

    def test_closed_stream_aborts(self, server: Server) -> None:
        with stream(server.ready(), "endless", stream_format="audio") as response:
            next(response.iter_bytes())

        server.wait_for("aborted")

    def test_closed_connection_aborts_a_request_that_waits(self, server: Server) -> None:
        host, port = server.ready().removeprefix("http://").split(":")
        body = json.dumps({"input": "stall"})
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall((head + body).encode())
            began = server.wait_for("began").split()[-1]

        assert server.wait_for("aborted").split()[-1] == began

    def test_failure_in_a_stream_breaks_the_connection(self, server: Server) -> None:
        url = server.ready()
        with stream(url, "fail-later", stream_format="audio") as response, pytest.raises(httpx.RemoteProtocolError):
            list(response.iter_bytes())

        assert speak(url, "hello").status_code == 200

    def test_bug_is_logged_once_and_not_told(self, server: Server) -> None:
        url = server.ready()

        answer = speak(url, "bug")
        events = []
        with stream(url, "bug-later", stream=True) as response, pytest.raises(httpx.RemoteProtocolError):
            events.extend(response.iter_lines())

        assert (answer.status_code, "secret" in answer.text) == (500, False)
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.headers["x-request-id"] in answer.text
        assert '"type":"speech.audio.error"' in events[-2]
        server.signal(signal.SIGTERM)
        _, _, stderr = server.ended()
        assert sum("KeyError: 'secret'" in line for line in stderr) == 2

    def test_whole_answer_has_a_length_and_a_stream_is_chunked(self, server: Server) -> None:
        url = server.ready()

        whole, streamed = speak(url, "hello"), speak(url, "hello", stream_format="audio")

        assert int(whole.headers["content-length"]) == len(whole.content)
        assert streamed.headers["transfer-encoding"] == "chunked"
        assert streamed.content[44:] == whole.content[44:]

    def test_head_and_options_have_no_body(self, server: Server) -> None:
        url = server.ready()
        with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            head, options, after = client.head("/health"), client.options("/v1/audio/speech"), client.get("/health")

        assert (head.status_code, head.content) == (200, b"")
        assert (options.status_code, options.content) == (204, b"")
        assert after.json() == {"status": "healthy"}

    def test_large_body_is_refused_and_the_server_goes_on(self, start: Callable[..., Server]) -> None:
        url = start("m", "--port", "0", "--max-body-bytes", "10000").ready()

        assert speak(url, "x" * 20000).status_code == 413
        assert speak(url, "hello").status_code == 200


@pytest.mark.engine
class TestOpenAiClient:
    """The official client."""

    @pytest.fixture
    def client(self, start: Callable[..., Server]) -> Iterator[Any]:
        import openai

        server = start("org/fake-tts", "--port", "0", "--api-key", "secret")
        with httpx.Client(trust_env=False) as http:
            yield openai.OpenAI(base_url=f"{server.ready()}/v1", api_key="secret", max_retries=0, http_client=http)

    def test_models(self, client: Any) -> None:
        assert [model.id for model in client.models.list()] == ["org/fake-tts", "fake-tts"]
        assert client.models.retrieve("fake-tts").id == "fake-tts"

    @pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
    def test_speech_in_every_format(self, client: Any, name: str) -> None:
        answer = client.audio.speech.create(model="fake-tts", voice="Vivian", input="hello", response_format=name)

        assert len(answer.content) > 1000

    @pytest.mark.parametrize("name", ["mp3", "wav", "pcm"])
    def test_speech_streams(self, client: Any, name: str, tmp_path: Path) -> None:
        speech = client.audio.speech.with_streaming_response
        with speech.create(
            model="fake-tts", voice="Vivian", input="hello", response_format=name, stream_format="audio"
        ) as answer:
            answer.stream_to_file(tmp_path / "out")

        assert (tmp_path / "out").stat().st_size > 1000

    def test_speech_as_events(self, client: Any) -> None:
        speech = client.audio.speech.with_streaming_response
        with speech.create(
            model="fake-tts", voice="Vivian", input="hello", response_format="pcm", stream_format="sse"
        ) as answer:
            events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]

        assert [event["type"] for event in events] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
        assert len(b"".join(base64.b64decode(event["audio"]) for event in events[:-1])) == 2 * 15 * 1920

    def test_errors_are_the_clients_own_classes(self, client: Any) -> None:
        import openai

        with pytest.raises(openai.NotFoundError, match="gpt-4o"):
            client.audio.speech.create(model="gpt-4o-mini-tts", voice="Vivian", input="hello")
        with pytest.raises(openai.BadRequestError) as caught:
            client.audio.speech.create(model="fake-tts", voice="nobody", input="hello")
        assert (caught.value.param, caught.value.type) == ("voice", "invalid_request_error")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()


def test_command_module_imports_nothing_heavy() -> None:
    script = "import sys, omni_server.serve, omni_server.plugin\n"
    script += "heavy = ('torch', 'vllm', 'transformers', 'numpy', 'starlette', 'uvicorn', 'httpx', 'av', 'soundfile')\n"
    script += "print([name for name in heavy if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
