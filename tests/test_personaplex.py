"""PersonaPlex served: the official client and a raw socket over the whole way, two stages in processes of their own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(300)]

FRAME = 1920
FRAMES = 12
MODEL = "nvidia/personaplex-7b-v1"
DEPLOY = """
base_config: personaplex.yaml
duplex_session:
  max_sessions: 2
  replica_policy: least_sessions
  max_sessions_per_replica: 1
  warmup_frames: 2
restart: on-failure
restart_backoff_s: 0.1
stages:
  - {stage_id: 0, num_replicas: 2}
  - {stage_id: 1, num_replicas: 2}
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two replica groups with a session each."""
    folder = tmp_path_factory.mktemp("personaplex")
    command = [sys.executable, "-m", "omni_core", "tiny", "personaplex", str(folder / "model")]
    subprocess.run(command, check=True, timeout=120)
    (folder / "two.yaml").write_text(DEPLOY)
    with serve(
        folder / "model",
        *("--deploy-config", str(folder / "two.yaml"), "--served-model-name", MODEL),
        log=folder / "serve.log",
        env={"OMP_NUM_THREADS": "1"},
    ) as found:
        yield found


def said(seed: int) -> bytes:
    """Return what a user says, pcm16: noise, which the tiny model hears as well as words."""
    chance = np.random.default_rng(seed)
    return (chance.uniform(-0.3, 0.3, FRAMES * FRAME) * 32767).astype("<i2").tobytes()


class Talker:
    """A client over a raw socket."""

    def __init__(self, server: RunningServer) -> None:
        self.url = server.url.replace("http", "ws") + f"/v1/realtime?model={MODEL}"
        self.audio = b""
        self.words = ""
        self.ws: Any = None

    async def open(self, **session: Any) -> None:
        self.ws = await connect(self.url)
        await self.event("session.created")
        if session:
            await self.send("session.update", session={"type": "realtime", **session})
            await self.event("session.updated")

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send(json.dumps({"type": kind, **fields}))

    async def event(self, *wanted: str) -> dict[str, Any]:
        """Return the next event of these types; audio and words on the way are kept."""
        async with asyncio.timeout(60):
            while True:
                event: dict[str, Any] = json.loads(await self.ws.recv())
                if event["type"] == "response.output_audio.delta":
                    self.audio += base64.b64decode(event["delta"])
                elif event["type"] == "response.output_audio_transcript.delta":
                    self.words += event["delta"]
                if event["type"] in wanted:
                    return event

    async def talk(self, audio: bytes, *, piece: int = 2 * FRAME, frames: int = FRAMES - 2) -> str:
        """Say something and return the hash of the first frames of the answer."""
        sending = asyncio.create_task(self._say(audio, piece))
        try:
            while len(self.audio) < 2 * FRAME * frames:
                await self.event("response.output_audio.delta")
        finally:
            await sending
        return hashlib.sha256(self.audio[: 2 * FRAME * frames]).hexdigest()

    async def _say(self, audio: bytes, piece: int) -> None:
        for start in range(0, len(audio), piece):
            data = base64.b64encode(audio[start : start + piece]).decode()
            await self.send("input_audio_buffer.append", audio=data)

    async def close(self) -> None:
        await self.ws.close()


@pytest.fixture
def talker(server: RunningServer) -> Callable[[], Talker]:
    return lambda: Talker(server)


async def opened(make: Callable[[], Talker], **session: Any) -> Talker:
    """Return a session, as soon as the one before it is gone."""
    async with asyncio.timeout(60):
        while True:
            found = make()
            try:
                await found.open(**session)
            except (ConnectionClosed, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return found


VOICE = {"instructions": "you are well", "audio": {"output": {"voice": "NATM1"}}}


async def test_two_sessions_at_once_hear_the_same_and_say_the_same(talker: Callable[[], Talker]) -> None:
    """Whatever the size of the pieces in which they send; and other words get another answer."""
    one, two = await opened(talker, **VOICE), await opened(talker, **VOICE)
    hashes = await asyncio.gather(one.talk(said(1)), two.talk(said(1), piece=1414))
    await asyncio.gather(one.close(), two.close())

    third, fourth = await opened(talker, **VOICE), await opened(talker)
    others = await asyncio.gather(third.talk(said(2)), fourth.talk(said(1)))
    await asyncio.gather(third.close(), fourth.close())

    assert hashes[0] == hashes[1]
    assert len({*hashes, *others}) == 3
    assert np.abs(np.frombuffer(one.audio, "<i2").astype(int)).max() > 500
    assert one.words


async def test_a_session_more_than_the_slots_is_refused(talker: Callable[[], Talker]) -> None:
    """FE-08: retryable, and the socket is closed with 1013."""
    sessions = [await opened(talker), await opened(talker)]
    async with connect(talker().url) as refused:
        error = json.loads(await refused.recv())["error"]
        with pytest.raises(ConnectionClosed) as closed:
            await refused.recv()
    for session in sessions:
        await session.close()

    assert (error["code"], error["retryable"]) == ("resource_exhausted", True)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013


async def test_the_official_client_talks_to_it(server: RunningServer) -> None:
    await asyncio.to_thread(server.wait_for_free_sessions)
    url = f"{server.url}/v1"
    client = AsyncOpenAI(api_key="none", base_url=url, websocket_base_url=url.replace("http", "ws"))
    async with asyncio.timeout(60), client, client.realtime.connect(model=MODEL) as session:
        created = await session.recv()
        assert created.type == "session.created"
        assert created.session.audio.output.voice == "NATF2"  # type: ignore[union-attr]
        await session.session.update(session={"type": "realtime", "instructions": "be brief"})
        await session.input_audio_buffer.append(audio=base64.b64encode(said(3)).decode())
        heard = b""
        async for event in session:
            assert event.type != "error"
            if event.type == "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
                if len(heard) >= 2 * FRAME * 5:
                    await session.response.cancel()
            if event.type == "response.done":
                assert event.response.status == "cancelled"
                break
    assert len(heard) >= 2 * FRAME * 5


async def test_what_cannot_change_any_more_is_an_error_and_the_session_goes_on(talker: Callable[[], Talker]) -> None:
    session = await opened(talker, **VOICE)
    await session.talk(said(1), frames=3)

    await session.send("session.update", session={"type": "realtime", "instructions": "be another"})
    error = (await session.event("error"))["error"]
    before = len(session.audio)
    await session.send("input_audio_buffer.append", audio=base64.b64encode(said(1)).decode())
    await session.event("response.output_audio.delta")
    await session.close()

    assert error["code"] == "instructions_update_after_audio_unsupported"
    assert len(session.audio) > before


async def test_a_dead_replica_ends_its_session_and_no_other(server: RunningServer, talker: Callable[[], Talker]) -> None:
    """DP-10; and when it is back, its slot is, too."""
    one, two = await opened(talker, **VOICE), await opened(talker, **VOICE)
    await asyncio.gather(one.talk(said(1), frames=3), two.talk(said(1), frames=3))
    decoders = [found for found in psutil.Process(server.process.pid).children(recursive=True) if "omni:1" in found.name()]
    assert len(decoders) == 2
    decoders[0].kill()

    ends = [asyncio.create_task(session.event("error")) for session in (one, two)]
    done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    dead, alive = (one, two) if ends[0] in done else (two, one)
    error = done.pop().result()["error"]
    with pytest.raises(ConnectionClosed) as closed:
        await dead.event("nothing")
    await alive.talk(said(1), frames=len(alive.audio) // (2 * FRAME) + 5)

    again = await opened(talker, **VOICE)
    await again.talk(said(1), frames=3)
    await asyncio.gather(again.close(), alive.close())
    assert error["code"] in ("engine_dead", "engine_error")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


async def test_the_example_of_the_page_runs(server: RunningServer) -> None:
    await asyncio.to_thread(server.wait_for_free_sessions)
    page = (Path(__file__).resolve().parents[1] / "docs" / "duplex.md").read_text()
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "# talk.py" in code)
    module: dict[str, Any] = {"__name__": "talk"}
    exec(compile(code.replace('model="/tmp/tiny"', f"model={MODEL!r}"), "docs/duplex.md", "exec"), module)

    async with asyncio.timeout(60):
        heard = await module["main"](server.url.removeprefix("http://"))

    assert len(heard) > 48_000


def test_it_was_warm_before_it_listened(server: RunningServer) -> None:
    """DX-02, FE-06: every group of the process."""
    log = server.log.read_text()

    assert [f"replica group {group} is warm after 2 frames" in log for group in (0, 1)] == [True, True]
