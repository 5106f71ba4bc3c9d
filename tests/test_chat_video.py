"""Videos over HTTP, with and without their sound, on all three stages of both tiny omni models: seen, heard and spoken of."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni_core.testing.videos import make_video
from omni_server.testing import RunningServer, assert_same_sound

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

TEXT = {"type": "text", "text": "What is it?"}
GREEDY = {"temperature": 0.0, "top_k": -1, "repetition_penalty": 1.0}
SPOKEN: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"format": "pcm16"},
    "sampling_params_list": [GREEDY, {**GREEDY, "min_tokens": 12, "max_tokens": 12}, {}],
}


@pytest.fixture(scope="module", params=["qwen3-omni-moe", "qwen2.5-omni"])
def server(
    request: pytest.FixtureRequest, serve_chat: Callable[..., AbstractContextManager[RunningServer]]
) -> Iterator[RunningServer]:
    if request.param == "qwen3-omni-moe":
        yield request.getfixturevalue("chat_server")
        return
    with serve_chat(name=request.param) as server:
        yield server


def part(data: bytes, kind: str = "video", suffix: str = "mp4") -> dict[str, Any]:
    url = f"data:{kind}/{suffix};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def post(server: RunningServer, *content: Any, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": [*content, TEXT]}], "max_tokens": 8, **GREEDY, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def ask(server: RunningServer, *content: Any, **fields: Any) -> dict[str, Any]:
    response = post(server, *content, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    message = answer["choices"][0]["message"]
    found: str = message["audio"]["transcript"] if message.get("audio") else message["content"]
    return found


def sound_of(answer: dict[str, Any]) -> bytes:
    return base64.b64decode(answer["choices"][0]["message"]["audio"]["data"])


def prompt_tokens(answer: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = answer["usage"]["prompt_tokens_details"]
    return found


def test_a_video_is_seen_and_spoken_of(server: RunningServer) -> None:
    """Another video, or none, makes other words and another sound."""
    contents = [[], [part(make_video())], [part(make_video(moves=5))]]
    written = [ask(server, *content) for content in contents]
    spoken = [ask(server, *content, **SPOKEN) for content in contents]

    assert len({text_of(answer) for answer in written}) == 3
    assert [text_of(answer) for answer in spoken] == [text_of(answer) for answer in written]
    assert len({sound_of(answer) for answer in spoken}) == 3
    assert all(answer["usage"]["completion_tokens_details"]["audio_tokens"] == 12 for answer in spoken)
    assert [prompt_tokens(answer)["video_tokens"] > 0 for answer in written] == [False, True, True]


def test_the_sound_of_a_video_is_heard_where_that_is_asked_for(server: RunningServer) -> None:
    """The same pictures without sound, with it, and with another one."""
    low, high = part(make_video(pitch=200)), part(make_video(pitch=3000))
    deaf = [ask(server, video, **SPOKEN) for video in (low, high)]
    heard = [ask(server, video, **SPOKEN, use_audio_in_video=True) for video in (low, high)]
    again = ask(server, low, **SPOKEN, mm_processor_kwargs={"use_audio_in_video": True})

    assert text_of(deaf[0]) == text_of(deaf[1])
    assert len({sound_of(answer) for answer in (deaf[0], *heard)}) == 3
    assert text_of(again) == text_of(heard[0])
    assert_same_sound(sound_of(again), sound_of(heard[0]))
    without, with_sound = prompt_tokens(deaf[0]), prompt_tokens(heard[0])
    assert without["audio_tokens"] == 0
    assert with_sound["audio_tokens"] > 20  # two seconds
    assert with_sound["video_tokens"] == without["video_tokens"]
    assert with_sound["text_tokens"] == without["text_tokens"] + 2  # the marks around the sound


def test_videos_beside_text_and_images_are_each_as_alone(server: RunningServer, chat_folder: Path) -> None:
    image = part((chat_folder / "inputs" / "in_a.png").read_bytes(), "image", "png")
    heard = {"use_audio_in_video": True}
    requests: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {}),
        ([image], {}),
        ([part(make_video())], {}),
        ([part(make_video(frames=32, moves=5))], {}),
        ([part(make_video(pitch=200))], heard),
        ([image, part(make_video(pitch=3000))], heard),
    ]
    alone = [ask(server, *content, **SPOKEN, **fields) for content, fields in requests]

    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: ask(server, *request[0], **SPOKEN, **request[1]), requests))

    assert [text_of(answer) for answer in together] == [text_of(answer) for answer in alone]
    assert [answer["usage"]["prompt_tokens"] for answer in together] == [answer["usage"]["prompt_tokens"] for answer in alone]
    for found, expected in zip(together, alone, strict=True):
        assert_same_sound(sound_of(found), sound_of(expected))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("heard", [False, True], ids=["deaf", "heard"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"no video" * 99, "Could not open video stream"),
        (lambda: make_video()[:1500], "Could not open video stream"),
        (lambda: make_video(frames=1, pitch=200), "too few frames"),
    ],
    ids=["no video", "half", "one frame"],
)
def test_a_broken_video_is_named(
    server: RunningServer, make: Callable[[], bytes], reason: str, heard: bool, before: int
) -> None:
    response = post(server, *[TEXT] * before, part(make()), use_audio_in_video=heard)

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == f"messages[0].content[{before}].video_url"
    assert reason in error["message"] or (heard and "no sound that can be read" in error["message"])
    assert text_of(ask(server, max_tokens=2))


def test_a_video_without_sound_cannot_be_heard(server: RunningServer) -> None:
    response = post(server, part(make_video()), use_audio_in_video=True)

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[0].video_url"
    assert "has no sound that can be read" in error["message"]
    assert "leave out use_audio_in_video" in error["message"]
    assert text_of(ask(server, part(make_video())))


def test_other_audio_beside_a_video_that_is_heard_is_refused(server: RunningServer, chat_folder: Path) -> None:
    audio = part((chat_folder / "inputs" / "in_a.wav").read_bytes(), "audio", "wav")
    video = part(make_video(pitch=200))

    refused = post(server, audio, video, use_audio_in_video=True)

    assert refused.status_code == 400, refused.text
    assert "equal number of audio and video" in refused.json()["error"]["message"]
    assert prompt_tokens(ask(server, audio, video))["audio_tokens"] > 10
