"""`omni talk` against a server in this process: from file to file, with every way in which it can end."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_core.errors import ConfigError, DeadlineError, DependencyError, OmniError, ServiceError
from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.testing import LoudEar, ScriptedModel, ScriptedTurnModel
from omni_server.talk.command import command

pytestmark = pytest.mark.anyio

RATE = 24_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_API_KEY", "key-1")


def spoken(fence: Fence) -> list[Any]:
    half = AudioOut(np.full(1200, 0.25, np.float32), RATE, fence)
    return [TextOut("good ", fence), half, TextOut("day", fence), half, TurnEnd(fence)]


def turns(script: list[Any] | None = None) -> ScriptedTurnModel:
    return ScriptedTurnModel(script if script is not None else [spoken] * 8, Capabilities(voices=("ada", "bob")))


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A stereo file at 16 kHz: half a second of sound, then a little silence."""
    loud = 0.5 * np.sin(np.arange(8000) / 4)
    file = tmp_path / "question.wav"
    soundfile.write(file, np.stack([np.concatenate([loud, np.zeros(3200)])] * 2, axis=1), 16_000)
    return file


async def talk(served: Any, *words: str) -> int:
    """Run the command in a thread, as it runs its own loop."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    args = parser.parse_args([*(["--url", served.url] if served is not None else []), "--quiet", "--timeout", "20", *words])
    return await asyncio.wait_for(asyncio.to_thread(command.run, args), 60)


@pytest.mark.parametrize("ear", [None, LoudEar.maker(200)], ids=["the client ends the turn", "the server finds its end"])
async def test_a_file_is_said_and_the_answer_written(
    serve_sessions: Callable[..., Any], question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ear: Any
) -> None:
    model = turns()
    output = tmp_path / "answer.wav"
    async with serve_sessions(model, ear=ear) as served:
        code = await talk(
            served, "--input", str(question), "--output", str(output), "--fast", "--voice", "bob", "--instructions", "be kind"
        )
        assert await served.free_slots() == 2

    assert code == 0
    assert capsys.readouterr().out == "model: good day\n"
    written, rate = soundfile.read(output, dtype="int16")
    assert rate == RATE
    np.testing.assert_array_equal(written, np.full(2400, round(0.25 * 32767)))
    _, options = model.streams[0].asked[0]  # type: ignore[attr-defined]
    assert (options.voice, options.instructions) == ("bob", "be kind")


async def test_a_file_of_two_turns_is_over_with_the_second_answer(
    serve_sessions: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sent fast, the second turn interrupts the first answer."""
    loud, quiet = 0.5 * np.sin(np.arange(12_000) / 4), np.zeros(12_000)
    soundfile.write(tmp_path / "two.flac", np.concatenate([loud, quiet, loud]), RATE)
    model = turns()
    async with serve_sessions(model, ear=LoudEar.maker(200)) as served:
        await talk(served, "--input", str(tmp_path / "two.flac"), "--output", str(tmp_path / "out.wav"), "--fast")

    assert len(model.streams[0].asked) == 2  # type: ignore[attr-defined]
    assert capsys.readouterr().out.endswith("model: good day\n")


async def test_a_model_that_decides_by_itself_is_waited_for(
    serve_sessions: Callable[..., Any], question: Path, tmp_path: Path
) -> None:
    """It gets silence for as long as it speaks, and the conversation ends when it says no more."""
    model = ScriptedModel([lambda fence: []] * 12 + [lambda fence: [AudioOut(np.full(480, 0.5, np.float32), RATE, fence)]])
    async with serve_sessions(model) as served:
        await talk(served, "--input", str(question), "--output", str(tmp_path / "out.wav"), "--fast", "--wait", "1")

    written, _ = soundfile.read(tmp_path / "out.wav", dtype="int16")
    assert len(written) == 480


async def test_silence_is_told_from_speech(serve_sessions: Callable[..., Any], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "quiet.wav", np.zeros(4800), RATE)
    async with serve_sessions(turns(), ear=LoudEar.maker(200)) as served:
        with pytest.raises(ServiceError, match="heard no speech"):
            await talk(served, "--input", str(tmp_path / "quiet.wav"), "--output", str(tmp_path / "out.wav"), "--fast")

    assert not (tmp_path / "out.wav").exists()


async def test_what_the_server_refuses_is_said(serve_sessions: Callable[..., Any], question: Path, tmp_path: Path) -> None:
    files = ("--input", str(question), "--output", str(tmp_path / "out.wav"), "--fast")
    async with serve_sessions(turns(), max_sessions=1) as served:
        with pytest.raises(ServiceError, match="wants a key") as refused:
            await talk(served, *files, "--api-key", "wrong")
        assert "OMNI_API_KEY" in refused.value.hint
        with pytest.raises(ServiceError, match="not served here"):
            await talk(served, *files, "--model", "org/another")
        with pytest.raises(ServiceError, match="no voice 'eve'"):
            await talk(served, *files, "--voice", "eve")
        assert await served.free_slots() == 1
    async with serve_sessions(None) as served:
        with pytest.raises(ServiceError, match="no realtime sessions"):
            await talk(served, *files)


async def test_an_answer_that_never_comes_ends_in_time(
    serve_sessions: Callable[..., Any], question: Path, tmp_path: Path
) -> None:
    model = turns()
    model.hold()
    async with serve_sessions(model) as served:
        with pytest.raises(DeadlineError, match="not over after 1 s"):
            await talk(served, "--input", str(question), "--output", str(tmp_path / "out.wav"), "--fast", "--timeout", "1")
        assert await served.free_slots() == 2


async def test_a_session_that_the_server_ends_is_an_error(
    serve_sessions: Callable[..., Any], question: Path, tmp_path: Path
) -> None:
    model = turns()
    model.hold()
    async with serve_sessions(model) as served:
        talking = asyncio.create_task(talk(served, "--input", str(question), "--output", str(tmp_path / "out.wav"), "--fast"))
        async with asyncio.timeout(20):
            while not model.streams or not model.streams[0].asked:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        await served.manager.close("shutdown")
        with pytest.raises(ServiceError, match="shutdown"):
            await talking


async def test_nobody_at_the_address_is_an_error(question: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ServiceError, match="no server answers"):
            await talk(None, "--url", url, "--input", str(question), "--output", str(tmp_path / "out.wav"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--input", "none.wav", "--output", "out.wav"), "cannot be read"),
        (("--input", "{question}", "--output", "out.mp3"), "does not end with .wav"),
        (("--input", "{question}", "--output", "out.wav", "--url", "ftp://host"), "no address"),
    ],
)
async def test_a_wrong_flag_is_named(question: Path, words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await talk(None, *(word.format(question=question) for word in words))


# -- devices -----------------------------------------------------------------------------------------------------------


class Device:
    """A stand-in for sounddevice: a microphone that says a sound and is then silent, and a speaker that plays at once."""

    PortAudioError = RuntimeError

    def __init__(self) -> None:
        self.played = bytearray()
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.closed = 0

    def _stream(self, callback: Any, blocksize: int) -> Any:
        return SimpleNamespace(callback=callback, size=blocksize, start=lambda: None, close=self._close)

    def _close(self) -> None:
        self.closed += 1

    def RawInputStream(self, *, callback: Any, blocksize: int, **options: Any) -> Any:
        assert options == {"samplerate": RATE, "channels": 1, "dtype": "int16"}
        self.inputs.append(self._stream(callback, blocksize))
        return self.inputs[-1]

    def RawOutputStream(self, *, callback: Any, blocksize: int, **options: Any) -> Any:
        self.outputs.append(self._stream(callback, blocksize))
        return self.outputs[-1]

    def say(self, value: int, blocks: int) -> None:
        for _ in range(blocks):
            stream = self.inputs[-1]
            stream.callback(np.full(stream.size, value, "<i2").tobytes(), stream.size, None, None)

    def play(self, blocks: int) -> None:
        for _ in range(blocks):
            stream = self.outputs[-1]
            out = bytearray(2 * stream.size)
            stream.callback(memoryview(out), stream.size, None, None)
            self.played += out


async def test_a_microphone_and_a_speaker_and_an_interruption(
    serve_sessions: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was heard of an answer when the user speaks again is what the server goes on with."""
    from omni_server.talk.client import Options, hold
    from omni_server.talk.devices import Microphone, Speaker
    from omni_server.talk.screen import Screen

    device = Device()
    monkeypatch.setitem(sys.modules, "sounddevice", device)  # type: ignore[arg-type]
    long = [lambda fence: [TextOut("one two", fence), AudioOut(np.full(RATE, 0.5, np.float32), RATE, fence), TurnEnd(fence)]]
    async with serve_sessions(turns([*long, spoken]), ear=LoudEar.maker(200)) as served:
        with Microphone() as microphone, Speaker() as speaker:
            options = Options(url=served.url, api_key="key-1")
            talking = asyncio.create_task(hold(options, microphone, speaker, Screen(shows_meter=False)))
            async with asyncio.timeout(20):
                device.say(9000, 10)
                device.say(0, 10)
                while len(speaker._waiting) < 2 * RATE:
                    await asyncio.sleep(0.01)
                device.play(5)
                assert np.abs(np.frombuffer(bytes(device.played), "<i2")).min() > 0
                device.say(9000, 10)
                actor = next(iter(served.manager.sessions))
                while not any(part.played_ms == 200 for item in actor.session.items for part in item.content):
                    await asyncio.sleep(0.01)
            assert speaker._waiting == b""
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
        assert await served.free_slots() == 2
    assert device.closed == 2


async def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)

    with pytest.raises(DependencyError, match=r"omni-server\[talk\]"):
        await talk(None)


async def test_a_missing_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()

    def fail(**options: Any) -> Any:
        raise RuntimeError("no default device")

    monkeypatch.setattr(device, "RawInputStream", fail)
    monkeypatch.setitem(sys.modules, "sounddevice", device)  # type: ignore[arg-type]

    with pytest.raises(OmniError, match="no default device"):
        await talk(None)
