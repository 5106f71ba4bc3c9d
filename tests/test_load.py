"""Alone equals under load: what a request says does not depend on who else is there, how they read, or what they push out.

Rounding does. A matrix product of four rows adds up in another order than one of a single row, so samples may differ by
`ROUNDING` steps of 16 bits. The first test shows that batches can do no more than that, and that one wrong code does far more.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_core.engine.heart import HEARTBEAT_S
from omni_core.testing.waiting import wait_until
from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
FRAME = 1920
AT_ONCE = 32
ROUNDING = 2
"""Steps of 16 bits."""
TEXTS = (
    "Yes.",
    "The train leaves at five.",
    "今天天气真好，我们一起去公园散步吧。",
    "Call 555-0199 at 7:45 p.m.; it costs $12.",
    "It rained all night, and in the morning the river stood at the door of the mill; nobody had heard it come.",
)
FRAMES = (1, 2, 24, 25, 26, 40, 60)
"""Most frames of a request: around the sizes of payloads, which have 1 and then 25 frames."""
DELIVERIES = ("whole", "stream", "slow stream", "events")

Wave = np.ndarray[Any, np.dtype[np.int16]]


@dataclass(frozen=True)
class Ask:
    """One request, and how its answer is read."""

    body: str
    """JSON, so that equal requests are equal."""
    delivery: str


@pytest.fixture(scope="module")
def checkpoint(tiny: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return a variant's checkpoint: the golden one, whose greedy choices are never close, where it is there."""

    def find(variant: str) -> Path:
        golden = GOLDEN / f"qwen3-tts-{variant}"
        return golden if golden.exists() else tiny(variant)

    return find


def _bodies(variant: str) -> list[str]:
    """Return requests of different lengths."""
    made = []
    for number in range(AT_ONCE):
        text = TEXTS[number % len(TEXTS)]
        body: dict[str, Any] = {"input": text, "max_new_tokens": FRAMES[number % len(FRAMES)], "response_format": "pcm"}
        body["sampling_params_list"] = [{"temperature": 0.0}, {}]
        if variant == "base":
            body["ref_audio"] = _reference(1.0 + number % 3)
            body |= {"x_vector_only_mode": True} if number % 2 else {"ref_text": "Hello."}
        elif variant == "voice_design":
            body["instructions"] = ("A calm old man.", "A young woman, who whispers and is in a hurry.")[number % 2]
        made.append(json.dumps(body))
    return made


def _reference(seconds: float) -> str:
    buffer = io.BytesIO()
    times = np.arange(int(24000 * seconds)) / 24000
    samples = 0.3 * np.sin(2 * np.pi * (200 * times + 40 * times**2))
    soundfile.write(buffer, samples.astype(np.float32), 24000, format="WAV")
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode()


async def _ask(client: httpx.AsyncClient, ask: Ask, others_done: asyncio.Event | None) -> Wave:
    """Send a request and return its samples. A slow reader takes one piece and the rest when all others are done."""
    body = json.loads(ask.body)
    if ask.delivery != "whole":
        body["stream_format"] = "sse" if ask.delivery == "events" else "audio"
    async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        if ask.delivery == "events":
            data = b"".join([piece async for piece in _deltas(answer)])
        else:
            pieces = answer.aiter_bytes(4096)
            data = await anext(pieces)
            if ask.delivery == "slow stream" and others_done is not None:
                await others_done.wait()
            data += b"".join([piece async for piece in pieces])
    return np.frombuffer(data, "<i2")


async def _deltas(answer: httpx.Response) -> AsyncIterator[bytes]:
    kinds: Counter[str] = Counter()
    async for line in answer.aiter_lines():
        if line:
            event = json.loads(line.removeprefix("data: "))
            kinds[event["type"]] += 1
            if event["type"] == "speech.audio.delta":
                yield base64.b64decode(event["audio"])
    assert kinds.pop("speech.audio.done") == 1
    assert set(kinds) == {"speech.audio.delta"}


async def _all_at_once(url: str, asks: Sequence[Ask]) -> list[Wave]:
    others = Counter(ask.delivery == "slow stream" for ask in asks)[False]
    done = asyncio.Event()

    async def one(client: httpx.AsyncClient, ask: Ask) -> Wave:
        nonlocal others
        try:
            return await _ask(client, ask, done)
        finally:
            if ask.delivery != "slow stream":
                others -= 1
                if not others:
                    done.set()

    limits = httpx.Limits(max_connections=len(asks))
    async with httpx.AsyncClient(base_url=url, timeout=180, limits=limits) as client:
        return list(await asyncio.gather(*(one(client, ask) for ask in asks)))


async def _one_by_one(url: str, bodies: Sequence[str]) -> dict[str, Wave]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return {body: await _ask(client, Ask(body, "whole"), None) for body in dict.fromkeys(bodies)}


def _metric(server: RunningServer, name: str) -> float:
    """Return the sum of the series whose line begins with `name`."""
    lines = httpx.get(f"{server.url}/metrics", timeout=20).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def _preemptions(server: RunningServer) -> float:
    return _metric(server, "vllm:num_preemptions_total")


@contextmanager
def _serving(model: Path, folder: Path, *arguments: str) -> Iterator[RunningServer]:
    with serve(model, *arguments, log=folder / "serve.log", env={"OMP_NUM_THREADS": "1"}) as server:
        yield server


def _check_load(server: RunningServer, variant: str, turns: int = 2) -> None:
    """Send each request alone, then all at once, in each turn read in another way, and compare every sample."""
    bodies = _bodies(variant)
    alone = asyncio.run(_one_by_one(server.url, bodies))
    before = _preemptions(server)
    for turn in range(turns):
        asks = [Ask(body, DELIVERIES[(number + turn) % len(DELIVERIES)]) for number, body in enumerate(bodies)]
        waves = asyncio.run(_all_at_once(server.url, asks))
        for ask, wave in zip(asks, waves, strict=True):
            expected = alone[ask.body]
            what = f"{ask.delivery}: {ask.body[:80]}"
            assert 0 < len(expected) <= json.loads(ask.body)["max_new_tokens"] * FRAME, what
            assert len(expected) % FRAME == 0, what
            assert wave.shape == expected.shape, what
            assert np.abs(wave.astype(int) - expected.astype(int)).max() <= ROUNDING, what
    assert len({wave[:FRAME].tobytes() for wave in alone.values()}) >= len(TEXTS), "different texts must sound different"
    print(f"{variant}: {len(alone)} alone, {turns * len(bodies)} under load, {_preemptions(server) - before:.0f} preemptions")


def test_batches_round_and_a_wrong_code_is_no_rounding(checkpoint: Callable[[str], Path]) -> None:
    import torch

    from omni_models_qwen.qwen3_tts.codec_decoder import CodecDecoder

    decoder = CodecDecoder.load(checkpoint("custom_voice") / "speech_tokenizer", device="cpu", dtype=torch.float32)
    config = decoder.config
    codes = torch.randint(config.codebook_size, (4, 60, config.num_quantizers), generator=torch.Generator().manual_seed(0))

    def decode(codes: torch.Tensor, sizes: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the waves [batch, samples] of codes that come in payloads of these sizes."""
        states = [decoder.begin() for _ in codes]
        parts = [decoder.decode(part, states, reference=part[:, :0]) for part in codes.split(list(sizes), dim=1)]
        return torch.cat(parts, dim=1).numpy()[..., 0]

    with torch.inference_mode():
        alone = np.concatenate([decode(row[None], [1, 25, 25, 9]) for row in codes])
        batched = [decode(codes, [1, 25, 25, 9]), decode(codes[:2], [2, 25, 24, 9]), decode(codes[:3], [60])]
        wrong = codes.clone()
        wrong[:, 30, -1] = (wrong[:, 30, -1] + 1) % config.codebook_size
        changed = decode(wrong, [1, 25, 25, 9])

    step = 1 / 32767
    most = max(float(np.abs(wave - alone[: len(wave)]).max()) for wave in batched)
    least = float(np.abs(changed - alone).max(axis=1).min())
    print(f"steps of 16 bits: batches move a sample by up to {most / step:.2f}, one wrong code by {least / step:.0f}")
    # Numbers that differ by less than n steps are n steps apart at most once they are rounded.
    assert most < ROUNDING * step
    assert least > 20 * ROUNDING * step


def test_32_requests_that_run_together(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with _serving(checkpoint("custom_voice"), tmp_path, "--max-num-seqs", "32") as server:
        _check_load(server, "custom_voice")


def test_32_requests_of_which_one_runs_while_prompts_take_several_steps(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with _serving(
        checkpoint("base"), tmp_path, "--stage-overrides", '{"0": {"max_num_seqs": 1, "max_num_batched_tokens": 16}}'
    ) as server:
        _check_load(server, "base", turns=1)  # one after another, they take as long as alone


def test_32_requests_that_push_each_other_out(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """All in 16 blocks of KV cache, which is less than they need: vLLM preempts, and computes what it threw away again."""
    few = {"num_gpu_blocks_override": 16, "block_size": 32, "max_model_len": 448, "max_num_batched_tokens": 64}
    with _serving(checkpoint("voice_design"), tmp_path, "--stage-overrides", json.dumps({"0": few})) as server:
        _check_load(server, "voice_design")

        wait_until(lambda: _preemptions(server) > 0, "the engine to tell of preemptions")


FRAMES_SENT = 2000
"""Of the request whose client stops: 8 MB, more than all buffers between it and the first stage hold."""
BEATS = 3
"""Heartbeats without news after which a stage has stopped."""


@contextmanager
def _reader_that_stops(server: RunningServer) -> Iterator[socket.socket]:
    """Send a long request for a stream on a socket with little room, read its first bytes, and then nothing."""
    url = httpx.URL(server.url)
    sampling = [{"temperature": 0.0, "min_tokens": FRAMES_SENT}, {}]
    fields = {"input": TEXTS[0], "response_format": "pcm", "stream_format": "audio", "max_new_tokens": FRAMES_SENT}
    body = json.dumps({**fields, "sampling_params_list": sampling}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json"
    head += f"\r\nContent-Length: {len(body)}"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect((url.host, url.port))
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        assert client.recv(64).startswith(b"HTTP/1.1 200")
        yield client


def _wait_for_standstill(server: RunningServer) -> float:
    """Return the tokens that the first stage has made when it makes no more, although its request runs."""
    made, unchanged, deadline = -1.0, 0, time.monotonic() + 120
    while unchanged < BEATS * HEARTBEAT_S:
        assert time.monotonic() < deadline, f"the stage goes on, {made:.0f} tokens so far"
        time.sleep(1.0)
        now = _metric(server, "omni_tokens_total")
        made, unchanged = now, unchanged + 1 if now == made and now > 0 else 0
    assert _metric(server, "omni_requests_running ") == 1
    return made


def test_a_reader_that_stops_stops_its_own_request_alone(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    bodies = _bodies("custom_voice")[:8]
    # A window counts pieces, and small ones fill it sooner.
    small = ("--set", "connectors.connector_of_shared_memory.extra.codec_chunk_frames=5")
    with _serving(checkpoint("custom_voice"), tmp_path, "--max-num-seqs", "4", *small) as server:
        alone = asyncio.run(_one_by_one(server.url, bodies))
        before = _metric(server, "omni_tokens_total")
        with _reader_that_stops(server) as client:
            made = _wait_for_standstill(server) - before
            assert made < FRAMES_SENT
            resident = _metric(server, "omni_process_resident_bytes")

            waves = asyncio.run(_all_at_once(server.url, [Ask(body, "stream") for body in bodies]))

            for body, wave in zip(bodies, waves, strict=True):
                assert wave.shape == alone[body].shape
                assert np.abs(wave.astype(int) - alone[body].astype(int)).max() <= ROUNDING
            assert _wait_for_standstill(server) > 0
            assert _metric(server, "omni_process_resident_bytes") < resident * 1.05
            print(f"stopped behind {made:.0f} of {FRAMES_SENT} frames; {len(bodies)} neighbours were served")

            # It reads on, and nothing of its own was lost.
            rest, end = 0, b""
            while data := client.recv(1 << 20):
                rest, end = rest + len(data), (end + data)[-5:]
        assert end == b"0\r\n\r\n"
        assert rest > FRAMES_SENT * FRAME * 2
