"""WS /v1/audio/speech/stream against a fake engine (AP-06)."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest

from omni_core.observe import series
from omni_server import speech_stream, streaming
from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.encoders import FORMATS, to_pcm16
from omni_server.fake_engine import TRAITS, FakeEngine
from omni_server.speaker import Speaker
from omni_server.text_pieces import PieceSplitter

pytestmark = pytest.mark.anyio

STEREO = replace(TRAITS, channels=2, sample_rate=48000)


@pytest.fixture
def connect(talk: Any, make_plugins: Any, engine: FakeEngine) -> Callable[..., Any]:
    """Open a connection; leave it at the end of the context, if it is still open, and wait for the application."""

    @asynccontextmanager
    async def opened(
        used: FakeEngine | None = None, headers: dict[str, str] | None = None, config: Any = None, **settings: Any
    ) -> AsyncIterator[Any]:
        app = build_app(used or engine, ServerSettings("org/fake-tts", **settings), plugins=make_plugins())
        talking = talk(app, headers=headers)
        talking.stopping = app.state.context.state.stopping
        try:
            if config is not None:
                assert (await talking.next())["type"] == "websocket.accept"
                talking.say("session.config", **config)
            yield talking
        finally:
            talking.flowing.set()
            talking.leave()
            await asyncio.wait_for(asyncio.gather(talking.task, return_exceptions=True), 10)

    return opened


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the kinds of events, binary frames in a row as one."""
    found: list[str] = []
    for event in events:
        if event["type"] != "bytes" or not found or found[-1] != "bytes":
            found.append(event["type"])
    return found


def sound(events: list[dict[str, Any]]) -> bytes:
    return b"".join(event["data"] for event in events if event["type"] == "bytes")


def starts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "audio.start"]


def whole_tone(engine: FakeEngine) -> bytes:
    return to_pcm16(np.concatenate([engine.tone(index) for index in range(engine.chunks)])).tobytes()


async def test_each_sentence_is_one_request_in_order_and_in_one_voice(connect: Any, engine: FakeEngine) -> None:
    """AP-06."""
    config = {"voice": "Ryan", "seed": 3, "response_format": "pcm"}
    async with connect(config=config) as talking:
        for piece in ("Hel", "lo there. ", "How", " are you? Fi", "ne!"):
            talking.say("input.text", text=piece)
        talking.say("input.done")
        events = await talking.until("session.done")

    assert kinds(events) == ["audio.start", "bytes", "audio.done"] * 3 + ["session.done"]
    texts = ["Hello there. ", "How are you? ", "Fine!"]
    assert [event["sentence_text"] for event in starts(events)] == texts
    assert [(prompt.text, prompt.voice, prompt.seed) for prompt in engine.prompts] == [
        (text.strip(), "Ryan", 3) for text in texts
    ]
    assert len(set(engine.ids)) == 3
    assert sound(events) == whole_tone(engine) * 3
    assert events[0] == {
        "type": "audio.start",
        "utterance_index": 0,
        "sentence_index": 0,
        "sentence_text": "Hello there. ",
        "format": "pcm",
        "sample_rate": 24000,
        "channels": 1,
    }
    done = [event for event in events if event["type"] == "audio.done"]
    assert done[-1] == {
        "type": "audio.done",
        "utterance_index": 0,
        "sentence_index": 2,
        "total_bytes": len(whole_tone(engine)),
        "error": False,
    }
    assert events[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 3}


async def test_audio_leaves_before_the_text_is_complete(connect: Any, engine: FakeEngine) -> None:
    async with connect(config={"response_format": "pcm"}) as talking:
        talking.say("input.text", text="wait-later is here. A")

        events = [await talking.event(), await talking.next()]

        assert events[0]["sentence_text"] == "wait-later is here. "
        assert len(events[1]["bytes"]) == 2 * 5 * 1920
        engine.go_on.set()
        talking.say("input.done")
        assert starts(await talking.until("session.done"))[0]["sentence_text"] == "A"


async def test_connection_stays_for_the_next_utterance_and_another_configuration(connect: Any, engine: FakeEngine) -> None:
    async with connect(config={"voice": "Ryan"}) as talking:
        talking.say("input.text", text="One.")
        talking.say("input.done")
        await talking.until("session.done")
        talking.say("session.config", voice="Vivian", response_format="pcm")
        talking.say("input.text", text="Two.")
        talking.say("input.done")
        events = await talking.until("session.done")

    assert [(event["utterance_index"], event["format"]) for event in starts(events)] == [(1, "pcm")]
    assert [prompt.voice for prompt in engine.prompts] == ["Ryan", "Vivian"]


@pytest.mark.parametrize(
    ("granularity", "wanted"),
    [
        ("none", ["It is late, so we go. Bye!"]),
        ("sentence", ["It is late, so we go. ", "Bye!"]),
        ("clause", ["It is late, so we go. ", "Bye!"]),
        ("clause", ["The weather is fine, ", "so we go."]),
    ],
)
async def test_granularity_says_what_one_request_is(granularity: str, wanted: list[str], connect: Any) -> None:
    async with connect(config={"split_granularity": granularity}) as talking:
        talking.say("input.text", text="".join(wanted))
        talking.say("input.done")
        events = await talking.until("session.done")

    assert [event["sentence_text"] for event in starts(events)] == wanted


async def test_emoji_may_be_cut_between_messages(connect: Any) -> None:
    """E09: a client that cuts UTF-16 strings sends halves of surrogate pairs."""
    async with connect(config={}) as talking:
        talking.say_raw(r'{"type": "input.text", "text": "Good \ud83d"}')
        talking.say_raw(r'{"type": "input.text", "text": "\ude00 morning."}')
        talking.say("input.done")
        events = await talking.until("session.done")

    assert [event["sentence_text"] for event in starts(events)] == ["Good 😀 morning."]


@pytest.mark.parametrize("traits", [TRAITS, STEREO], ids=["24 kHz mono", "48 kHz stereo"])
@pytest.mark.parametrize("name", sorted(FORMATS))
async def test_every_format_is_what_audio_start_says(name: str, traits: Any, connect: Any) -> None:
    """Issue 6: stereo and 48 kHz in every format; whole where the format cannot be streamed."""
    engine = FakeEngine(traits=traits)
    async with connect(engine, config={"response_format": name}) as talking:
        talking.say("input.text", text="Hello.")
        talking.say("input.done")
        events = await talking.until("session.done")

    start = events[0]
    assert (start["format"], start["sample_rate"], start["channels"]) == (name, traits.sample_rate, traits.channels)
    frames = 3 * 5 * 1920
    if name == "pcm":
        assert sound(events) == whole_tone(engine)
        return
    with av.open(io.BytesIO(sound(events))) as container:
        stream = container.streams.audio[0]
        made = np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(stream)])
        assert (stream.rate, stream.channels) == (48000 if name == "opus" else traits.sample_rate, traits.channels)
    seconds = len(made) / stream.channels / stream.rate
    assert seconds == pytest.approx(frames / traits.sample_rate, abs=0.15)


async def test_whole_sentences_are_files_of_their_own(connect: Any, wav_reader: Any, engine: FakeEngine) -> None:
    async with connect(config={"stream_audio": False, "speed": 1.0}) as talking:
        talking.say("input.text", text="Hello.")
        talking.say("input.done")
        events = await talking.until("session.done")

    assert [event["type"] for event in events] == ["audio.start", "bytes", "audio.done", "session.done"]
    rate, channels, samples = wav_reader(sound(events))
    assert (rate, channels, samples.tobytes()) == (24000, 1, whole_tone(engine))


async def test_other_sample_rate_is_announced_and_made(connect: Any) -> None:
    async with connect(config={"sample_rate": 8000, "response_format": "pcm"}) as talking:
        talking.say("input.text", text="One. Two.")
        talking.say("session.close")
        _, events = await talking.closed()

    assert [event["sample_rate"] for event in starts(events)] == [8000, 8000]
    assert [event["total_bytes"] for event in events if event["type"] == "audio.done"] == [2 * 3 * 5 * 1920 // 3] * 2


async def test_other_tempo_gives_whole_sentences(connect: Any, wav_reader: Any) -> None:
    async with connect(config={"speed": 2}) as talking:
        talking.say("input.text", text="Hello.")
        talking.say("input.done")
        events = await talking.until("session.done")

    assert len(wav_reader(sound(events))[2]) == pytest.approx(3 * 5 * 1920 / 2, rel=0.1)


async def test_long_files_come_in_frames_that_clients_accept(connect: Any) -> None:
    """A client's limit is often 1 MiB for one message."""
    async with connect(FakeEngine(traits=STEREO, chunks=60), config={"stream_audio": False}) as talking:
        talking.say("input.text", text="Hello.")
        talking.say("input.done")
        events = await talking.until("session.done")

    assert max(len(event["data"]) for event in events if event["type"] == "bytes") == 1 << 20
    assert events[-2]["total_bytes"] == len(sound(events)) == 44 + 60 * 5 * 1920 * 4


class TestConfiguration:
    """What the first message may say."""

    @pytest.mark.parametrize(
        ("config", "param"),
        [
            ({"voice": "nobody"}, "voice"),
            ({"volume": 3}, "volume"),
            ({"response_format": "flac", "stream_audio": True}, "response_format"),
            ({"speed": 2, "stream_audio": True}, "speed"),
            ({"sample_rate": 11025}, "sample_rate"),
            ({"split_granularity": "word"}, "split_granularity"),
            ({"model": "another"}, "model"),
            ({"ref_audio": "data:,x"}, "ref_audio"),
            ({"input": "Hello."}, "input"),
        ],
        ids=str,
    )
    async def test_wrong_one_is_an_error_and_the_end(self, config: Any, param: str, connect: Any) -> None:
        async with connect(config=config) as talking:
            code, events = await talking.closed()

        assert code == 1008
        assert [event["type"] for event in events] == ["error"]
        error = events[0]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert events[0]["message"] == error["message"]

    @pytest.mark.parametrize("text", ["{", "[]", '{"type": "input.text", "text": "Hello"}', '{"type": 3}', "{}"])
    async def test_another_first_message_is_an_error_and_the_end(self, text: str, connect: Any) -> None:
        async with connect() as talking:
            await talking.next()
            talking.say_raw(text)
            code, events = await talking.closed()

        assert (code, [event["type"] for event in events]) == (1008, ["error"])

    async def test_it_must_come_in_time(self, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(speech_stream, "CONFIG_TIMEOUT_S", 0.01)
        async with connect() as talking:
            await talking.next()
            code, events = await talking.closed()

        assert (code, events[0]["error"]["code"]) == (1008, "session_timeout")

    async def test_it_cannot_change_within_an_utterance(self, connect: Any, engine: FakeEngine) -> None:
        """AP-06."""
        async with connect(config={"voice": "Ryan"}) as talking:
            talking.say("input.text", text="Hello")
            talking.say("session.config", voice="Vivian")
            refused = await talking.event()
            talking.say("input.done")
            await talking.until("session.done")

        assert refused["error"]["code"] == "message_out_of_order"
        assert [prompt.voice for prompt in engine.prompts] == ["Ryan"]

    async def test_wrong_one_later_leaves_the_first(self, connect: Any, engine: FakeEngine) -> None:
        async with connect(config={"voice": "Ryan"}) as talking:
            talking.say("session.config", voice="nobody")
            refused = await talking.event()
            talking.say("input.text", text="Hello")
            talking.say("input.done")
            await talking.until("session.done")

        assert refused["error"]["param"] == "voice"
        assert [prompt.voice for prompt in engine.prompts] == ["Ryan"]

    async def test_reference_is_fetched_once_for_all_sentences(
        self, connect: Any, engine: FakeEngine, data_uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with connect(config={"ref_audio": data_uri}, reference_cache_entries=0) as talking:
            talking.say("input.text", text="One. Two.")
            talking.say("input.done")
            await talking.until("session.done")

        first, second = [prompt.ref_audio for prompt in engine.prompts]
        assert first is not None
        assert first is second


class TestMessages:
    """Whatever comes: an error event, and the session goes on."""

    @pytest.mark.parametrize(
        ("raw", "param"),
        [
            ("{", None),
            ("[1]", None),
            (b"\0\1", None),
            ('{"type": "input.voice"}', "type"),
            ('{"type": ["input.text"]}', "type"),
            ('{"type": "input.text"}', "text"),
            ('{"type": "input.text", "text": 7}', "text"),
            (r'{"type": "input.text", "text": "a\u0000b"}', "text"),
            (r'{"type": "input.text", "text": "\ude00 alone"}', "text"),
            ("[" * 100_000, None),
        ],
        ids=["no json", "a list", "binary", "unknown", "type is a list", "no text", "number", "NUL", "half a pair", "deep"],
    )
    async def test_wrong_message_is_an_error_and_no_more(self, raw: Any, param: str | None, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say_raw(raw)
            refused = await talking.event()
            talking.say("input.text", text="Hello.")
            talking.say("input.done")
            events = await talking.until("session.done")

        assert refused["type"] == "error"
        assert refused["error"]["param"] == param
        assert [event["sentence_text"] for event in starts(events)] == ["Hello."]

    async def test_text_that_ends_in_half_a_pair_is_an_error_and_the_rest_is_spoken(self, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say_raw(r'{"type": "input.text", "text": "Hello \ud83d"}')
            talking.say("input.done")
            events = await talking.until("session.done")

        assert kinds(events) == ["audio.start", "bytes", "audio.done", "error", "session.done"]
        assert events[0]["sentence_text"] == "Hello "

    @pytest.mark.parametrize("text", [None, "", " \n"])
    async def test_nothing_to_speak_is_an_error(self, text: str | None, connect: Any) -> None:
        """B24: empty is refused here as over HTTP."""
        async with connect(config={}) as talking:
            if text is not None:
                talking.say("input.text", text=text)
            talking.say("input.done")
            events = await talking.until("session.done")

        assert kinds(events) == ["error", "session.done"]
        assert events[0]["error"]["param"] == "text"
        assert events[1]["total_sentences"] == 0

    @pytest.mark.parametrize("later", [False, True])
    async def test_too_large_message_ends_the_session(self, later: bool, connect: Any) -> None:
        """AP-06: 4 MiB for a configuration, 128 KiB for everything else."""
        async with connect(config={} if later else None) as talking:
            if not later:
                await talking.next()
            size = speech_stream.MAX_MESSAGE_BYTES if later else speech_stream.MAX_CONFIG_BYTES
            talking.say("input.text" if later else "session.config", text="é" * (size // 2))
            code, events = await talking.closed()

        assert (code, events[-1]["type"]) == (1009, "error")

    async def test_too_much_text_is_refused_and_can_be_sent_again(
        self, connect: Any, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine
    ) -> None:
        monkeypatch.setattr(speech_stream, "MAX_PENDING_CHARS", 50)
        async with connect(config={}) as talking:
            talking.say("input.text", text="wait-later is a word. 20 characters long. B")
            await talking.event()
            talking.say("input.text", text="and more text than there is room for now")
            while "text" not in (message := await talking.next()):
                pass
            refused = json.loads(message["text"])
            engine.go_on.set()
            await talking.until("audio.done")
            await talking.until("audio.start")
            talking.say("input.text", text="and more text than there is room for now")
            talking.say("input.done")
            events = await talking.until("session.done")

        assert refused["error"]["code"] == "input_backpressure"
        assert [event["sentence_text"] for event in starts(events)] == ["Band more text than there is room for now"]

    async def test_utterances_without_end_are_refused_when_too_many_wait(
        self, connect: Any, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine
    ) -> None:
        """Each costs memory until it is its turn, and a client can end one in twenty bytes."""
        monkeypatch.setattr(speech_stream, "MAX_PENDING_UTTERANCES", 3)
        async with connect(config={}) as talking:
            talking.say("input.text", text="wait-later is this.")
            for _ in range(4):
                talking.say("input.done")
            refused = (await talking.until("error"))[-1]
            engine.go_on.set()
            events = [event for _ in range(3) for event in await talking.until("session.done")]

        assert refused["error"]["code"] == "input_backpressure"
        assert [event["utterance_index"] for event in events if event["type"] == "session.done"] == [0, 1, 2]

    async def test_long_messages_are_read_and_cut_without_stopping_others(
        self, connect: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notes: list[tuple[str, bool]] = []

        def noting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*arguments: Any) -> Any:
                notes.append((name, threading.current_thread() is not threading.main_thread()))
                return work(*arguments)

            return noted

        monkeypatch.setattr(speech_stream, "load_object", noting("read", speech_stream.load_object))
        monkeypatch.setattr(PieceSplitter, "push", noting("cut", PieceSplitter.push))
        async with connect(config={"instructions": "a" * speech_stream.LARGE_BODY_BYTES}) as talking:
            talking.say("input.text", text="A sentence. " + "b" * speech_stream.LARGE_TEXT_CHARS)
            await talking.event()
            talking.say("input.cancel")
            await talking.until("session.done")

        assert notes == [("read", True), ("read", False), ("cut", True), ("read", False)]


class TestEndings:
    """Who ends a session, and what becomes of the request that runs."""

    async def test_client_that_leaves_aborts_the_request(self, connect: Any, engine: FakeEngine) -> None:
        """B18."""
        async with connect(config={}) as talking:
            talking.say("input.text", text="endless is this. And more. And")
            await talking.event()
            talking.leave()
            await asyncio.wait_for(engine.released.wait(), 10)

        assert engine.aborted == engine.ids
        assert len(engine.ids) == 1

    async def test_cancel_aborts_and_forgets(self, connect: Any, engine: FakeEngine) -> None:
        async with connect(config={"response_format": "pcm"}) as talking:
            talking.say("input.text", text="stall-later is this. And more. And")
            await talking.event()
            await talking.next()
            talking.say("input.cancel")
            events = await talking.until("session.done")
            talking.say("input.text", text="Again.")
            talking.say("input.done")
            later = await talking.until("session.done")

        assert events == [
            {
                "type": "audio.done",
                "utterance_index": 0,
                "sentence_index": 0,
                "total_bytes": 2 * 5 * 1920,
                "error": True,
                "cancelled": True,
            },
            {"type": "session.done", "utterance_index": 0, "total_sentences": 1, "cancelled": True},
        ]
        assert engine.aborted == engine.ids[:1]
        assert [prompt.text for prompt in engine.prompts] == ["stall-later is this.", "Again."]
        assert later[0]["utterance_index"] == 1

    async def test_cancel_ends_every_utterance_that_waits(self, connect: Any) -> None:
        async with connect(config={}) as talking:
            for text in ("stall is this.", "Second."):
                talking.say("input.text", text=text)
                talking.say("input.done")
            talking.say("input.text", text="Third")
            await talking.event()
            talking.say("input.cancel")
            events = [await talking.event() for _ in range(4)]

        assert [(event["type"], event["utterance_index"]) for event in events] == [
            ("audio.done", 0),
            ("session.done", 0),
            ("session.done", 1),
            ("session.done", 2),
        ]

    async def test_cancel_of_nothing_says_nothing(self, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say("input.cancel")
            talking.say("input.text", text="Hello.")
            talking.say("input.done")
            events = await talking.until("session.done")

        assert events[0]["type"] == "audio.start"
        assert events[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 1}

    async def test_close_speaks_what_was_sent(self, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say("input.text", text="Hello. And the rest")
            talking.say("session.close")
            talking.say("input.text", text="too late")
            code, events = await talking.closed()

        assert code == 1000
        assert [event["sentence_text"] for event in starts(events)] == ["Hello. ", "And the rest"]
        assert [event["error"]["code"] for event in events if event["type"] == "error"] == ["message_out_of_order"]
        assert events[-1]["type"] == "session.done"

    async def test_cancel_while_closing_closes_at_once(self, connect: Any, engine: FakeEngine) -> None:
        async with connect(config={}) as talking:
            talking.say("input.text", text="stall is this.")
            talking.say("session.close")
            await talking.event()
            talking.say("input.cancel")
            code, events = await talking.closed()

        assert (code, engine.aborted) == (1000, engine.ids)
        assert events[-1]["cancelled"] is True

    async def test_silent_client_is_let_go(self, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(speech_stream, "IDLE_TIMEOUT_S", 0.02)
        async with connect(config={}) as talking:
            code, events = await talking.closed()

        assert (code, events[-1]["error"]["code"]) == (4002, "session_timeout")

    async def test_client_may_be_silent_while_it_listens(
        self, connect: Any, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine
    ) -> None:
        looked, ran_out = 0, asyncio.Event()

        def is_busy(self: Speaker) -> bool:
            nonlocal looked
            busy = was_busy(self)
            looked += busy
            if looked > 6:  # the reader looks twice each time that the limit has passed
                ran_out.set()
            return busy

        was_busy = Speaker.is_busy.fget
        assert was_busy is not None
        monkeypatch.setattr(Speaker, "is_busy", property(is_busy))
        monkeypatch.setattr(speech_stream, "IDLE_TIMEOUT_S", 0.02)
        async with connect(config={}) as talking:
            talking.say("input.text", text="wait-later is this.")
            talking.say("input.done")
            await talking.event()
            await asyncio.wait_for(ran_out.wait(), 10)
            engine.go_on.set()
            events = await talking.until("session.done")
            code, _ = await talking.closed()

        assert events[-2]["error"] is False
        assert code == 4002

    async def test_client_that_does_not_read_holds_the_engine_back_and_is_let_go(
        self, connect: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Back-pressure: nothing piles up for a client that takes nothing."""
        monkeypatch.setattr(streaming, "SEND_STALL_S", 0.05)
        async with connect(config={}) as talking:
            talking.say("input.text", text="endless is this. And")
            await talking.event()
            talking.flowing.clear()
            await asyncio.wait_for(engine.released.wait(), 10)
            waiting = talking.sent.qsize()
            talking.flowing.set()
            code, _ = await talking.closed()

        assert waiting < 50
        assert code == 4003
        assert engine.aborted == engine.ids


class TestFailures:
    """What goes wrong in the engine is told, and the next sentence follows."""

    @pytest.mark.parametrize("order", ["fail", "fail-later"])
    async def test_failed_sentence_is_an_error_and_the_next_one_follows(self, order: str, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say("input.text", text=f"{order} is this. Next.")
            talking.say("input.done")
            events = await talking.until("session.done")

        expected = ["audio.start", *(["bytes"] if order == "fail-later" else []), "error", "audio.done"]
        assert kinds(events) == [*expected, "audio.start", "bytes", "audio.done", "session.done"]
        assert next(event for event in events if event["type"] == "error")["error"]["type"] == "service_unavailable_error"
        assert [event["error"] for event in events if event["type"] == "audio.done"] == [True, False]

    async def test_refused_sentence_names_the_field(self, connect: Any) -> None:
        config = {"sampling_params_list": [{}]}
        async with connect(config=config) as talking:
            talking.say("input.text", text="Hello.")
            talking.say("input.done")
            events = await talking.until("session.done")

        assert events[1]["error"]["param"] == "sampling_params_list"

    async def test_bug_closes_the_connection_without_its_reason(self, connect: Any) -> None:
        async with connect(config={}) as talking:
            talking.say("input.text", text="bug-later is this.")
            talking.say("input.done")
            code, events = await talking.closed()

        assert code == 1011
        assert events[-1]["type"] == "error"
        assert "secret" not in events[-1]["message"]

    async def test_model_that_does_not_speak_refuses_the_configuration(self, connect: Any) -> None:
        async with connect(FakeEngine(speaks=False), config={}) as talking:
            code, events = await talking.closed()

        assert (code, events[0]["error"]["param"]) == (1008, "model")

    async def test_answers_are_counted_by_sentence(self, connect: Any, engine: FakeEngine) -> None:
        async with connect(config={}) as talking:
            talking.say("input.text", text="One.\n\nfail is this.\n\nThree.")
            talking.say("input.done")
            await talking.until("session.done")

        registry = engine.telemetry.registry
        endings = ("complete", "failed", "aborted")
        counts = [registry.get(series.ANSWERS, delivery="websocket", ending=ending) for ending in endings]
        assert counts == [2, 1, 0]
        assert registry.count(series.FIRST_PACKET_SECONDS, delivery="websocket") == 2


class TestDoors:
    """Who may connect."""

    @pytest.mark.parametrize(
        ("headers", "opens"),
        [
            ({}, False),
            ({"authorization": "Bearer wrong"}, False),
            ({"authorization": "Bearer key"}, True),
            ({"sec-websocket-protocol": "realtime, openai-insecure-api-key.key"}, True),
        ],
    )
    async def test_key_is_asked_for_as_over_http(self, headers: dict[str, str], opens: bool, connect: Any) -> None:
        """E11."""
        async with connect(headers=headers, api_key=("key",)) as talking:
            first = await talking.next()

        assert first["type"] == ("websocket.accept" if opens else "websocket.close")
        if "sec-websocket-protocol" in headers:
            assert first["subprotocol"] == "realtime"

    @pytest.mark.parametrize(
        ("origin", "allowed", "opens"),
        [
            (None, (), True),
            ("http://test", (), True),
            ("https://evil.example", (), False),
            ("https://app.example", ("https://app.example",), True),
            ("https://evil.example", ("*",), True),
            ("null", (), False),
            ("http://[evil", (), False),
        ],
    )
    async def test_pages_of_other_sites_need_permission(
        self, origin: str | None, allowed: tuple[str, ...], opens: bool, connect: Any
    ) -> None:
        async with connect(headers={"origin": origin} if origin else {}, allowed_origins=allowed) as talking:
            assert (await talking.next())["type"] == ("websocket.accept" if opens else "websocket.close")


# The server stops


async def test_utterances_that_have_begun_are_spoken_when_the_server_stops_and_none_begins(
    connect: Any, engine: FakeEngine
) -> None:
    async with connect(config={"response_format": "pcm"}) as talking:
        talking.say("input.text", text="wait-later is one.")
        talking.say("input.done")
        talking.say("input.text", text="Then two")
        await talking.event()
        talking.stopping.set()
        talking.say("input.text", text=", and its end.")
        talking.say("input.done")
        talking.say("input.done")
        talking.say("session.config", voice="Ryan")
        talking.say("input.text", text="Three.")
        await talking.next()
        refused = [await talking.event() for _ in range(3)]
        engine.go_on.set()
        code, events = await talking.closed()

    assert {event["error"]["code"] for event in refused} == {"server_stopping"}
    assert refused[0]["error"]["type"] == "service_unavailable_error"
    assert [event["sentence_text"] for event in starts(events)] == ["Then two, and its end."]
    assert [event["utterance_index"] for event in events if event["type"] == "session.done"] == [0, 1]
    assert code == 1012


async def test_cancel_ends_a_session_whose_server_stops(connect: Any) -> None:
    async with connect(config={"response_format": "pcm"}) as talking:
        talking.say("input.text", text="stall is one. And")
        await talking.event()
        talking.stopping.set()
        talking.say("input.cancel")
        code, events = await talking.closed()

    assert events[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 1, "cancelled": True}
    assert code == 1012


async def test_session_that_its_client_ends_while_the_server_stops_ends_as_ever(connect: Any, engine: FakeEngine) -> None:
    async with connect(config={"response_format": "pcm"}) as talking:
        talking.say("input.text", text="wait-later is one. And")
        await talking.event()
        talking.stopping.set()
        talking.say("session.close")
        engine.go_on.set()
        code, events = await talking.closed()

    assert events[-1]["type"] == "session.done"
    assert code == 1000


async def test_socket_of_a_server_that_stops_is_closed_at_once(connect: Any) -> None:
    async with connect() as talking:
        talking.stopping.set()

        code, events = await talking.closed()

    assert (code, events) == (1012, [])


async def test_session_that_is_cut_off_says_so(connect: Any) -> None:
    """What the client has must not look whole."""
    async with connect(config={"response_format": "pcm"}) as talking:
        talking.say("input.text", text="stall is one. And")
        await talking.event()
        talking.task.cancel()
        code, events = await talking.closed()

    assert [event["error"]["code"] for event in events] == ["server_stopping"]
    assert code == 1012
