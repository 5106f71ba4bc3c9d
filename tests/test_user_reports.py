"""What users of other servers reported, tried on ours: one test for each report, named after it (spec/user-reports.md)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from omni_core.client import Omni
from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError, RequestError, StageDeadError
from omni_core.request import OmniRequest
from omni_core.speech import SpeechPrompt
from omni_core.testing.fakes import make_audio
from omni_core.testing.hosts import reserved_port
from omni_core.testing.running import audio, collect, loads, pids, request, running, until_empty
from omni_core.testing.waiting import async_wait_until, wait_until
from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

FRAME = 1920
DEFAULT_FRAMES = 3
OVERRIDES = {"0": {"default_sampling_params": {"max_tokens": DEFAULT_FRAMES}}}
"""B03: a per-stage key that other servers take and ignore."""
AT_LEAST = [{"min_tokens": DEFAULT_FRAMES}, {}]
"""Keeps a random model from ending by chance before the default limit."""
GREEDY = [{"temperature": 0.0}, {}]
SOON_S = 20.0
LAST_STREAM_SIZE = 0xFFFFFFFF


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> Path:
    return tiny("custom_voice")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("reports") / "serve.log"
    with serve(model, "--stage-overrides", json.dumps(OVERRIDES), log=log, env={"OMP_NUM_THREADS": "1"}) as server:
        yield server


def _post(server: RunningServer, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"input": "Good morning.", "response_format": "pcm", **fields}
    # Not httpx's own JSON: half a surrogate pair is sent as an escape, which any client can do.
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    return httpx.post(f"{server.url}/v1/audio/speech", content=content, headers=headers, timeout=60)


def _speak(server: RunningServer, **fields: Any) -> np.ndarray[Any, Any]:
    """Return the samples of an answer that must be good."""
    answer = _post(server, **fields)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2")


def _refused(answer: httpx.Response, param: str | None) -> None:
    assert answer.status_code in (400, 404, 422), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error


def _is_alive(server: RunningServer) -> None:
    assert len(_speak(server, sampling_params_list=AT_LEAST)) == DEFAULT_FRAMES * FRAME
    assert httpx.get(f"{server.url}/health", timeout=SOON_S).status_code == 200


# B03


@pytest.mark.parametrize(
    "overrides",
    [
        '{"0": {"session_mode": "turn"}}',
        '{"0": {"connectors": {}}}',
        '{"0": {"edges": []}}',
        '{"0": {"platforms": {}}}',
        '{"0": {"pipeline": "qwen3_tts"}}',
        '{"0": 5}',
        "[]",
        "{bad",
        '{"7": {"max_num_seqs": 1}}',
    ],
)
def test_b03_an_override_that_can_never_work_is_refused(model: Path, overrides: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_deployment(model, stage_overrides=overrides, platform="cpu")

    assert caught.value.where.startswith("--stage-overrides")


def test_b03_a_sampling_parameter_in_an_override_is_applied(server: RunningServer) -> None:
    assert len(_speak(server, sampling_params_list=AT_LEAST)) == DEFAULT_FRAMES * FRAME
    assert len(_speak(server, max_new_tokens=30, sampling_params_list=GREEDY)) > DEFAULT_FRAMES * FRAME


# B07


def test_b07_stage_overrides_do_not_slow_the_start(model: Path) -> None:
    """An override changes the one field it names, so that what starts is what starts without it."""
    plain = resolve_deployment(model, platform="cpu")

    changed = resolve_deployment(model, stage_overrides='{"1": {"max_num_seqs": 10}}', platform="cpu")

    assert changed.stages[0] == plain.stages[0]
    was, now = plain.stages[1], changed.stages[1]
    assert now.engine_args == {**was.engine_args, "max_num_seqs": 10}
    assert replace(now, engine_args=was.engine_args, sources=was.sources, losers=was.losers) == was


# B08


def test_b08_a_stage_that_does_not_start_ends_the_server_and_frees_its_port(model: Path, traces: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        (broken / path.name).symlink_to(path)
    (broken / "speech_tokenizer").unlink()
    (broken / "speech_tokenizer").mkdir()
    for path in (model / "speech_tokenizer").iterdir():
        (broken / "speech_tokenizer" / path.name).write_bytes(
            path.read_bytes()[:100] if path.suffix == ".safetensors" else path.read_bytes()
        )
    with reserved_port() as port:
        command = [sys.executable, "-m", "omni_core", "serve", str(broken), "--host", "127.0.0.1", "--port", str(port)]
        environment = {**os.environ, **traces.env}

        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

        assert done.returncode == 1
        error = done.stderr[done.stderr.rindex("\nerror: ") :]
        assert "stage 1 (code2wav)" in error
        assert "model.safetensors" in error
        traces.wait_until_gone()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))
            again.listen()


# B09


@pytest.mark.parametrize("replicas", [1, 2])
def test_b09_a_dead_stage_costs_its_own_requests_and_text_goes_on(replicas: int) -> None:
    async def check() -> None:
        async with running(text_output=True, replicas={1: replicas}, stream={"chunk_frames": 1}) as orchestrator:
            speaking = [asyncio.create_task(collect(orchestrator, request(n, 200, step_s=0.01))) for n in range(6)]
            text = OmniRequest("text", {"seed": 7, "count": 200, "step_s": 0.01}, outputs=frozenset({0}))
            writing = asyncio.create_task(collect(orchestrator, text))
            await async_wait_until(lambda: sum(loads(orchestrator, "in_flight")[1:]) == 6, "the requests in stage 1")
            lost = loads(orchestrator, "in_flight")[1]

            os.kill(pids(orchestrator)[1], signal.SIGKILL)

            results = await asyncio.wait_for(asyncio.gather(*speaking, return_exceptions=True), 60)
            failed = [result for result in results if isinstance(result, BaseException)]
            assert len(failed) == lost
            assert [error for error in failed if not isinstance(error, StageDeadError) or "stage 1" not in str(error)] == []
            for seed, result in enumerate(results):
                if not isinstance(result, BaseException):
                    assert np.array_equal(audio(result), make_audio(seed, 200))
            assert (await writing)[-1].finished
            assert not orchestrator.health()["healthy"] or replicas > 1
            if replicas == 1:
                with pytest.raises(StageDeadError, match="stage 1"):
                    await asyncio.wait_for(collect(orchestrator, request(9)), SOON_S)
            await until_empty(orchestrator)

    asyncio.run(check())


# B10


def test_b10_ctrl_c_while_the_stages_load_leaves_nothing(model: Path, traces: Any) -> None:
    command = [sys.executable, "-m", "omni_core", "serve", str(model), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, **traces.env}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as started:

        def stages() -> list[str]:
            """Return the names of the stages' processes; others come and go while these load."""
            names = []
            for process in traces.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    names.append(process.name())
            return [name for name in names if name.startswith("omni:")]

        wait_until(lambda: len(stages()) == 2, "both stages to load", 120)

        started.send_signal(signal.SIGINT)

        output, errors = started.communicate(timeout=SOON_S)
    assert started.returncode in (0, 130), errors
    assert "Listening" not in output
    assert "Traceback" not in errors
    traces.wait_until_gone()


# B13


@pytest.mark.parametrize("at_once", [1, 8])
def test_b13_with_and_without_chunks_the_audio_is_the_same(at_once: int) -> None:
    async def speak(async_chunk: bool) -> list[np.ndarray[Any, Any]]:
        async with running(async_chunk=async_chunk, stream={"chunk_frames": 3}) as orchestrator:
            tasks = [collect(orchestrator, request(seed, 20 + seed)) for seed in range(at_once)]
            return [audio(outputs) for outputs in await asyncio.wait_for(asyncio.gather(*tasks), 60)]

    with_chunks, without = asyncio.run(speak(True)), asyncio.run(speak(False))

    for seed, (one, other) in enumerate(zip(with_chunks, without, strict=True)):
        assert np.array_equal(one, other)
        assert np.array_equal(one, make_audio(seed, 20 + seed))


# B19


def test_b19_two_requests_with_one_id_get_their_own_answers(server: RunningServer) -> None:
    texts = ("The first of two.", "And this is the second one.")
    fields: dict[str, Any] = {"max_new_tokens": 40, "sampling_params_list": GREEDY}
    alone = [_speak(server, input=text, **fields) for text in texts]

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda text: _post(server, {"X-Request-Id": "same"}, input=text, **fields), texts))

    for answer, expected in zip(together, alone, strict=True):
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "same"
        samples = np.frombuffer(answer.content, "<i2")
        assert samples.shape == expected.shape
        assert np.abs(samples.astype(int) - expected).max() <= 2
    assert len(alone[0]) != len(alone[1]) or np.abs(alone[0].astype(int) - alone[1]).max() > 100


@pytest.mark.parametrize("name", ["", "x" * 20_000, "x" * 2**20], ids=["empty", "long", "a megabyte"])
def test_b19_an_odd_id_is_cut_or_replaced(server: RunningServer, name: str) -> None:
    answer = _post(server, {"X-Request-Id": name}, max_new_tokens=2)

    assert answer.status_code == 200, answer.text
    assert 0 < len(answer.headers["x-request-id"]) <= 256


# B20


@pytest.mark.parametrize("frames", [1, 24, 25, 26, 27, 51, 52, 77])
def test_b20_a_stream_joined_is_the_whole_file_and_has_no_clicks(server: RunningServer, frames: int) -> None:
    """Payloads have 1 frame, then 25: these counts end before, on and behind a border."""
    fields: dict[str, Any] = {
        "max_new_tokens": frames,
        "sampling_params_list": [{"temperature": 0.0, "min_tokens": frames}, {}],
        "input": "One two three four five six seven eight.",
    }
    whole = _speak(server, **fields)

    streamed = _speak(server, **fields, stream_format="audio")

    assert len(whole) == frames * FRAME
    assert len(streamed) == len(whole)
    assert np.abs(streamed.astype(int) - whole).max() <= 2
    borders = [FRAME * border for border in range(1, len(whole) // FRAME, 25)]
    jumps = np.abs(np.diff(streamed.astype(int)))
    assert all(jumps[border - 1] <= np.percentile(jumps, 99.9) for border in borders)


# B21


def test_b21_a_streamed_wav_has_one_header_with_open_sizes(server: RunningServer) -> None:
    fields: dict[str, Any] = {"max_new_tokens": 40, "sampling_params_list": GREEDY, "response_format": "wav"}
    whole, streamed = _post(server, **fields), _post(server, **fields, stream_format="audio")

    assert whole.headers["content-type"] == streamed.headers["content-type"] == "audio/wav"
    with wave.open(io.BytesIO(whole.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        samples = file.readframes(file.getnframes())
        assert len(samples) == 2 * file.getnframes() == len(whole.content) - 44
    assert int.from_bytes(whole.content[4:8], "little") == len(whole.content) - 8
    assert streamed.content.count(b"RIFF") == 1
    assert int.from_bytes(streamed.content[4:8], "little") == LAST_STREAM_SIZE
    data = streamed.content.index(b"data")
    assert int.from_bytes(streamed.content[data + 4 : data + 8], "little") == LAST_STREAM_SIZE
    assert len(streamed.content) - data - 8 == len(samples)


def test_b21_events_carry_one_header_too(server: RunningServer) -> None:
    answer = _post(server, max_new_tokens=40, sampling_params_list=GREEDY, response_format="wav", stream=True)

    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    data = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
    assert data.startswith(b"RIFF")
    assert data.count(b"RIFF") == 1


# B22


@pytest.mark.parametrize("delivery", [{}, {"stream_format": "audio"}], ids=["whole", "stream"])
def test_b22_at_8000_hz_there_is_a_third_of_the_samples(server: RunningServer, delivery: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"max_new_tokens": 30, "sampling_params_list": GREEDY}
    full = _speak(server, **fields)

    answer = _post(server, **fields, **delivery, sample_rate=8000)

    assert answer.headers["x-omni-sample-rate"] == "8000"
    assert len(answer.content) * 3 == full.nbytes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"sample_rate": rate}, "sample_rate") for rate in (44100, 0, -1, "8000", 8000.5, True)),
        ({"speed": 2, "stream_format": "audio"}, "speed"),
        ({"speed": 2, "stream": True}, "speed"),
    ],
    ids=str,
)
def test_b22_a_rate_that_cannot_be_is_refused(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    _refused(_post(server, **fields), param)
    _is_alive(server)


# B23


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task_type": "Base"}, "task_type"),
        ({"model": "gpt-4o-mini-tts"}, "model"),
        ({"speaker_embedding": []}, "speaker_embedding"),
        ({"speaker_embedding": [0.1] * 512}, "speaker_embedding"),
        ({"instructions": 123}, "instructions"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": "mpeg"}, "response_format"),
        ({"ref_audio": "data:audio/wav;base64,AAAA", "speaker_embedding": [0.1]}, None),
        ({"sampling_params_list": [{}]}, "sampling_params_list"),
        ({"sampling_params_list": [{"temperature": -1}, {}]}, "temperature"),
        ({"sampling_params_list": [{"logit_bias": {"999999999": 1}}, {}]}, "logit_bias"),
        ({"sampling_params_list": [{"logit_bias": {"a": 1}}, {}]}, "logit_bias"),
        ({"sampling_params_list": [{"logit_bias": {"1": "much"}}, {}]}, "logit_bias"),
        ({"sampling_params_list": [{"max_tokens": 10**30}, {}]}, "sampling_params_list"),
        ({"extra_params": {"no_such": 1}}, "no_such"),
    ],
    ids=str,
)
def test_b23_a_bad_request_is_answered_and_ends_nothing(
    server: RunningServer, fields: dict[str, Any], param: str | None
) -> None:
    _refused(_post(server, **fields), param)
    _is_alive(server)


# B24

ODD: tuple[dict[str, Any], ...] = (
    {"voice": "nobody"},
    {"voice": "VIVIAN"},
    {"voice": " vivian "},
    {"voice": None},
    {"language": "xx"},
    {"language": "en-US"},
    {"language": "english"},
    {"language": "ENGLISH"},
    {"input": ""},
    {"input": " \t\n"},
    {"input": "\u200f\u200e"},
    {"input": "😀"},
    {"input": "?!…"},
    {"input": "\ufeff"},
    {"input": "x" * 1_000_000},
    {"input": "half \ud800 a pair"},
    {"input": "a \0 in it"},
    {"input": "שלום \u202eעולם"},
)


def test_b24_odd_texts_and_names_are_treated_alike_over_http_and_in_python(server: RunningServer, model: Path) -> None:
    over_http = []
    for change in ODD:
        answer = _post(server, **{"max_new_tokens": 2, **change})
        assert answer.status_code in (200, 400), (change, answer.text[:500])
        over_http.append("audio" if answer.status_code == 200 else f"refused: {answer.json()['error']['param']}")
        assert answer.status_code != 200 or len(answer.content) > 0
    _is_alive(server)

    in_python = []
    with Omni(model) as omni:
        for change in ODD:
            fields = {"text": "Good morning.", "max_new_tokens": 2, **change}
            fields["text"] = fields.pop("input", fields["text"])
            result = omni.generate(SpeechPrompt(**fields), return_errors=True)[0]
            assert result.error is None or isinstance(result.error, RequestError), (change, result.error)
            in_python.append("audio" if result.error is None else f"refused: {result.error.param}")

    names = [repr(change)[:40] for change in ODD]
    assert dict(zip(names, in_python, strict=True)) == dict(zip(names, over_http, strict=True))
    assert over_http[:3] == ["refused: voice", "audio", "refused: voice"]
    assert over_http[8:10] == ["refused: input", "refused: input"]


# E02, E03


@pytest.mark.parametrize("frames", [1, 7, 40])
def test_e02_a_model_that_never_ends_stops_at_the_limit_and_says_so(server: RunningServer, frames: int) -> None:
    """`min_tokens` keeps a random model from ending by chance."""
    sampling = [{"temperature": 0.0, "min_tokens": frames}, {}]

    answer = _post(server, max_new_tokens=frames, sampling_params_list=sampling)

    assert answer.status_code == 200, answer.text
    assert len(answer.content) == frames * FRAME * 2
    assert answer.headers["x-omni-finish-reason"] == "length"
    assert answer.headers["x-vllm-omni-output-tokens"] == str(frames)


def test_e02_there_is_a_limit_for_those_who_set_none(server: RunningServer) -> None:
    _refused(_post(server, max_new_tokens=1_000_000), "max_new_tokens")


def test_e03_a_seed_repeats_the_audio_and_another_one_does_not(server: RunningServer) -> None:
    first, again, other = (_speak(server, max_new_tokens=8, seed=seed) for seed in (1, 1, 2))

    assert first.shape == again.shape
    # Two steps: the same codes in other chunks are rounded otherwise (test_load.py).
    assert np.abs(first.astype(int) - again.astype(int)).max() <= 2
    assert len(other) != len(first) or np.abs(first.astype(int) - other.astype(int)).max() > 100


# E12


def test_e12_the_first_audio_leaves_while_most_of_the_answer_is_still_to_be_made(server: RunningServer) -> None:
    body = {
        "input": "Good morning.",
        "response_format": "pcm",
        "stream_format": "audio",
        "max_new_tokens": 2000,
        "sampling_params_list": [{"min_tokens": 2000}, {}],
    }
    # A generator of pieces that is dropped ends the request, so it has a name.
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces)

        lines = httpx.get(f"{server.url}/metrics", timeout=SOON_S).text.splitlines()

    running = [line.split()[-1] for line in lines if line.startswith("omni_requests_running ")]
    assert running == ["1.0"]
