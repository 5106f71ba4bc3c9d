"""Messages of a conversation: parts, files, and the place that a refusal names."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.chat import ChatTraits
from omni_core.errors import RequestError
from omni_server.chat_parts import MAX_FILES, read_messages
from omni_server.context import ServerSettings

pytestmark = pytest.mark.anyio
TRAITS = ChatTraits(frozenset({"text", "image", "audio", "video"}))
SETTINGS = ServerSettings("m", max_media_bytes=10_000, max_body_bytes=25_000)
TEXT = {"type": "text", "text": "What is it?"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def refused(messages: list[Any], settings: ServerSettings = SETTINGS, traits: ChatTraits = TRAITS) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await read_messages(messages, traits, settings)
    return caught.value


async def test_files_are_bytes_by_their_place_and_the_messages_hold_none() -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [
                TEXT,
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(b'png')}", "detail": "high"}},
                {"type": "video_url", "video_url": f"data:video/mp4;base64,{b64(b'mp4')}"},
                {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{b64(b'wav')}"}},
                {"type": "input_audio", "input_audio": {"data": b64(b"raw"), "format": "wav"}},
            ],
        },
    ]

    found = await read_messages(messages, TRAITS, SETTINGS)

    assert found.files == {
        "messages[1].content[1].image_url": b"png",
        "messages[1].content[2].video_url": b"mp4",
        "messages[1].content[3].audio_url": b"wav",
        "messages[1].content[4].input_audio": b"raw",
    }
    assert found.messages[0] == messages[0]
    assert [part["type"] for part in found.messages[1]["content"]] == [
        "text",
        "image_url",
        "video_url",
        "audio_url",
        "input_audio",
    ]
    assert "base64" not in str(found.messages)


AUDIO = bytes(range(256)) * 2


@pytest.mark.parametrize(
    "data",
    [
        b64(AUDIO),
        f"data:;base64,{b64(AUDIO)}",
        f"data:audio/wav;base64,{b64(AUDIO)}",
        base64.urlsafe_b64encode(AUDIO).decode(),
        base64.encodebytes(AUDIO).decode(),
        b64(AUDIO).rstrip("="),
        f"  {b64(AUDIO)}\n",
        b64(b"\xff\xff" + AUDIO)[:0] + b64(AUDIO),
    ],
    ids=["raw", "bare data URI", "data URI", "url-safe", "line-wrapped", "unpadded", "spaces", "again"],
)
async def test_e01_input_audio_is_read_as_people_send_it(data: str) -> None:
    found = await read_messages(user({"type": "input_audio", "input_audio": {"data": data}}), TRAITS, SETTINGS)

    assert list(found.files.values()) == [AUDIO]


async def test_base64_that_begins_like_a_path_is_no_path() -> None:
    """MP3 begins with //uQ."""
    data = b"\xff\xfb\x90" + bytes(60)
    assert b64(data).startswith("//uQ")

    found = await read_messages(user({"type": "input_audio", "input_audio": {"data": b64(data)}}), TRAITS, SETTINGS)

    assert list(found.files.values()) == [data]


async def test_a_local_file_is_read_where_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    part = {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/a.png"}}
    allowed = ServerSettings("m", allowed_local_media_path=str(tmp_path))

    found = await read_messages(user(part), TRAITS, allowed)

    assert list(found.files.values()) == [b"image"]
    assert (await refused(user(TEXT, part))).param == "messages[0].content[1].image_url"
    outside = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
    assert "outside" in (await refused(user(outside), allowed)).message


@pytest.mark.parametrize("url", ["http://example.com/a.png", "https://127.0.0.1/a", "http://169.254.169.254/latest"])
async def test_a_host_that_is_not_allowed_is_never_asked(url: str) -> None:
    error = await refused(user({"type": "image_url", "image_url": {"url": url}}))

    assert "may not fetch from" in error.message
    assert error.param == "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("part", "place", "text"),
    [
        ({"type": "file", "file": {"file_id": "x"}}, "", "`file`"),
        ({"type": "input_image", "image_url": "x"}, "", "Responses API"),
        ({"type": ["text"]}, "", "type"),
        ({"text": "x"}, "", "no type"),
        ("text", "", "no type"),
        ({"type": "text"}, ".text", "no text"),
        ({"type": "text", "text": 7}, ".text", "no text"),
        ({"type": "image_url"}, ".image_url", "no url"),
        ({"type": "image_url", "image_url": {"url": ""}}, ".image_url", "no url"),
        ({"type": "image_url", "image_url": {"url": "ftp://x/y"}}, ".image_url", "scheme"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64"}}, ".image_url", "comma"),
        ({"type": "input_audio", "input_audio": "x"}, ".input_audio", "no data"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, ".input_audio", "no data"),
        ({"type": "input_audio", "input_audio": {"data": "!!!"}}, ".input_audio", "base64"),
        ({"type": "input_audio", "input_audio": {"data": "/etc/passwd!"}}, ".input_audio", "base64"),
        ({"type": "input_audio", "input_audio": {"data": "http://x/y"}}, ".input_audio", "base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}}, ".image_url", "10000 bytes"),
    ],
    ids=str,
)
async def test_a_part_that_cannot_be_used_is_named(part: Any, place: str, text: str) -> None:
    error = await refused(user(TEXT, part))

    assert error.param == f"messages[0].content[1]{place}"
    assert text in str(error)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[1]"),
        ({}, "messages[1].role"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 7}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": "x", "color": "red"}, "messages[1]"),
        ({"role": "assistant"}, "messages[1].content"),
        ({"role": "assistant", "audio": {"id": "audio_1"}}, "messages[1].audio"),
    ],
    ids=str,
)
async def test_a_message_that_cannot_be_used_is_named(message: Any, param: str) -> None:
    assert (await refused([{"role": "user", "content": "hi"}, message])).param == param


async def test_an_answer_of_openais_client_can_be_sent_back() -> None:
    """Its null fields are left out, and what was spoken is read as its transcript."""
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "function_call": None,
        "tool_calls": None,
        "audio": {"id": "audio_1", "data": "AAAA", "expires_at": 1, "transcript": "Hello."},
    }

    found = await read_messages([answer], TRAITS, SETTINGS)

    assert found.messages == [{"role": "assistant", "content": "Hello."}]


async def test_calls_and_answers_of_tools_pass() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "7"}]

    assert (await read_messages(messages, TRAITS, SETTINGS)).messages == messages


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url"])
async def test_a_model_that_only_reads_takes_no_files(kind: str) -> None:
    error = await refused(user({"type": kind, kind: {"url": "data:,x", "data": "QUFB"}}), traits=ChatTraits())

    assert "it takes text" in error.hint


async def test_files_together_may_be_as_long_as_a_body() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64(bytes(9_000))}}

    assert len((await read_messages(user(part, part), TRAITS, SETTINGS)).files) == 2
    assert "25000 bytes" in (await refused(user(part, part, part))).message


async def test_there_is_a_most_of_files() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUFB"}}

    assert (await refused(user(*[part] * (MAX_FILES + 1)))).param == "messages"


async def test_a_file_that_does_not_come_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch, make_slow: Callable[..., Any]
) -> None:
    make_slow(monkeypatch)
    part = {"type": "image_url", "image_url": {"url": "http://slow.example/a.png"}}

    error = await refused(user(part), ServerSettings("m", media_timeout=0.01))

    assert "did not arrive within" in error.message
    assert error.param == "messages[0].content[0].image_url"


@pytest.fixture
def make_slow() -> Callable[[pytest.MonkeyPatch], None]:
    """Make every fetch take for ever."""

    def make(monkeypatch: pytest.MonkeyPatch) -> None:
        import asyncio

        from omni_server import media

        async def never(*_: Any) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(media, "fetch_bytes", never)

    return make
