"""The page at /ui in a real browser, whose microphone plays a file: speak, be heard, hear, interrupt, and what goes wrong."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.testing import LoudEar, ScriptedTurnModel

async_api = pytest.importorskip("playwright.async_api", reason="the test group `page` brings it")
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.engine,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; scripts/setup installs it where it may"),
]

RATE = 24_000
TIMEOUT_MS = 30_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def spoken(fence: Fence) -> list[Any]:
    """Return an answer of six seconds, so that it can be interrupted."""
    tone = (0.4 * np.sin(np.arange(RATE // 2) / 12)).astype(np.float32)
    words = ["this", "answer", "has", "six", "seconds", "and", "can", "be", "interrupted", "at", "any", "time"]
    return [part for word in words for part in (TextOut(f"{word} ", fence), AudioOut(tone, RATE, fence))] + [TurnEnd(fence)]


@pytest.fixture
def microphone(tmp_path: Path) -> Path:
    """A file of two seconds of silence, one of sound and three of silence, which the browser plays again and again."""
    loud = (0.6 * np.sin(np.arange(48_000) / 20)).astype(np.float32)
    samples = np.concatenate([np.zeros(96_000, np.float32), loud, np.zeros(144_000, np.float32)])
    return recorded(tmp_path / "microphone.wav", samples)


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    """A file of silence: a page that listens goes on to say so."""
    return recorded(tmp_path / "quiet.wav", np.zeros(48_000, np.float32))


def recorded(file: Path, samples: np.ndarray[Any, Any]) -> Path:
    """Write sound at 48 kHz to a file and return it."""
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(48_000)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file


@asynccontextmanager
async def browser(microphone: Path, *, strict: bool = False) -> AsyncIterator[Any]:
    """Open a page. Its policy forbids what the tests wait with, so that only a `strict` one has it."""
    flags = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    flags += [f"--use-file-for-fake-audio-capture={microphone}", "--autoplay-policy=no-user-gesture-required"]
    async with async_api.async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            context = await started.new_context(permissions=["microphone"], bypass_csp=not strict)
            page = await context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            async_api.expect.set_options(timeout=TIMEOUT_MS)
            yield page
        finally:
            await started.close()


def turns() -> ScriptedTurnModel:
    return ScriptedTurnModel([spoken] * 20, Capabilities(text_input=True))


async def opened(page: Any, served: Any, key: str = "key-1") -> None:
    await page.goto(served.page)
    await page.fill("#key", key)
    await page.press("#key", "Tab")


async def drawing(page: Any, canvas: str) -> int:
    """Return a sum over what a canvas shows: it is another one when the picture is."""
    return int(
        await page.evaluate(
            """id => { const canvas = document.getElementById(id);
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let sum = 0; for (let at = 0; at < data.length; at++) sum = (sum * 31 + data[at]) % 1000003; return sum; }""",
            canvas,
        )
    )


async def test_a_spoken_conversation(serve_sessions: Callable[..., Any], microphone: Path) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker(400)) as served, browser(microphone) as page:
        await opened(page, served)
        await page.wait_for_function("document.getElementById('server').textContent === 'org/fake-tts'")
        await page.click("#connect")

        await page.wait_for_function("document.querySelector('#transcript .model')?.textContent.includes('six seconds')")
        blank = await page.evaluate("document.createElement('canvas').toDataURL()")
        first = [await drawing(page, name) for name in ("wave-in", "wave-out")]
        await page.wait_for_function("document.getElementById('level-out').value > 0.1")
        await page.wait_for_function("document.getElementById('level-in').value > 0.1")
        assert blank
        assert [await drawing(page, name) for name in ("wave-in", "wave-out")] != first
        stream: Any = served.manager.model.streams[0]
        heard = stream.asked[0][0][-1].content[0].audio
        assert np.abs(heard).max() > 0.1, "the server got what was said"

        # The file speaks again while the answer is played: that cuts it, and the server learns how much was heard.
        await page.wait_for_selector("#transcript .model.cut")
        await page.wait_for_function("document.querySelectorAll('#transcript .user').length >= 2")

        await page.keyboard.press("m")
        assert await page.get_attribute("#mute", "aria-pressed") == "true"
        await page.click("#connect")
        assert await served.free_slots() == 2


async def test_what_hinders_a_conversation_is_said(serve_sessions: Callable[..., Any], quiet: Path) -> None:
    async with serve_sessions(turns(), max_sessions=1, ear=LoudEar.maker(400)) as served, browser(quiet) as page:
        await opened(page, served, key="wrong")
        await page.wait_for_function("document.getElementById('server').classList.contains('bad')")
        assert "API key" in await page.inner_text("#server")

        await opened(page, served)
        from omni_duplex.model import SessionConfig
        from omni_duplex.testing import PlainDialect

        occupying = await served.manager.open(PlainDialect(), SessionConfig())
        served.manager.attach(occupying)
        await page.click("#connect")
        await page.wait_for_function("document.getElementById('state').textContent.includes('trying again')")
        assert "resource" in await page.inner_text("#state") or "capacity" in await page.inner_text("#state")

        from omni_duplex.session.events import Close

        occupying.post(Close())
        await page.wait_for_function("document.getElementById('state').textContent.includes('listening')")


async def test_a_conversation_begins_although_the_server_has_not_yet_said_its_model(
    serve_sessions: Callable[..., Any], quiet: Path
) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker(400)) as served, browser(quiet) as page:
        asked = asyncio.Event()
        answered = asyncio.Event()

        async def late(route: Any) -> None:
            asked.set()
            await answered.wait()
            await route.continue_()

        await opened(page, served)
        await page.route("**/v1/models", late)
        await page.reload()
        await asked.wait()

        await page.click("#connect")
        await async_api.expect(page.locator("#state")).to_contain_text("asking the server")
        answered.set()

        await async_api.expect(page.locator("#state")).to_contain_text("listening")


async def test_an_answer_to_the_key_before_does_not_replace_the_one_to_the_key(
    serve_sessions: Callable[..., Any], microphone: Path
) -> None:
    async with serve_sessions(turns()) as served, browser(microphone) as page:
        released = asyncio.Event()

        async def late(route: Any) -> None:
            if "wrong" in route.request.headers["authorization"]:
                await released.wait()
            await route.continue_()

        await opened(page, served, key="wrong")
        await page.route("**/v1/models", late)
        await page.reload()
        await page.fill("#key", "key-1")
        await page.press("#key", "Tab")
        await async_api.expect(page.locator("#server")).to_have_text("org/fake-tts")

        async with page.expect_response("**/v1/models"):
            released.set()

        await page.evaluate("new Promise(done => setTimeout(done, 200))")  # what the page does with the answer is done
        await async_api.expect(page.locator("#server")).to_have_text("org/fake-tts")


async def test_a_server_that_could_not_be_asked_is_asked_again_by_the_next_click(
    serve_sessions: Callable[..., Any], quiet: Path
) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker(400)) as served, browser(quiet) as page:
        await opened(page, served)
        await page.route("**/v1/models", lambda route: route.abort())
        await page.reload()
        await async_api.expect(page.locator("#server")).to_have_class("bad")
        await page.click("#connect")
        await async_api.expect(page.locator("#state")).to_have_class("bad")
        assert await page.inner_text("#connect") == "Connect"
        await page.unroute("**/v1/models")

        await page.click("#connect")

        await async_api.expect(page.locator("#state")).to_contain_text("listening")


async def test_tabs_work_by_keyboard_and_everything_has_a_name(serve_sessions: Callable[..., Any], microphone: Path) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker()) as served, browser(microphone) as page:
        await opened(page, served)

        await page.focus("#tab-talk")
        await page.keyboard.press("ArrowRight")
        assert await page.is_visible("#panel-speech")
        assert not await page.is_visible("#panel-talk")
        await page.keyboard.press("End")
        assert await page.is_visible("#panel-chat")

        unnamed = await page.evaluate(
            """() => [...document.querySelectorAll("button, input, textarea, canvas, meter, audio, [role=log]")]
            .filter(e => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim())).map(e => e.id)"""
        )
        assert unnamed == []


async def test_speech_is_made_and_played(serve_sessions: Callable[..., Any], microphone: Path) -> None:
    async with serve_sessions(None) as served, browser(microphone) as page:
        await opened(page, served)
        await page.wait_for_function("document.getElementById('server').textContent === 'org/fake-tts'")
        await page.click("#tab-speech")
        await page.fill("#speech-text", "hello there")

        await page.click("#speech-form button")

        await page.wait_for_function("document.getElementById('speech-audio').duration > 0")
        assert "KiB" in await page.inner_text("#speech-state")


async def test_the_page_loads_nothing_from_elsewhere(serve_sessions: Callable[..., Any], quiet: Path) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker()) as served, browser(quiet, strict=True) as page:
        asked: list[str] = []
        broken: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: broken.append(message.text) if message.type == "error" else None)
        await opened(page, served)
        await async_api.expect(page.locator("#server")).to_have_text("org/fake-tts")
        await page.click("#connect")
        await async_api.expect(page.locator("#state")).to_contain_text("listening")

        origin = served.page.removesuffix("/ui")
        assert [url for url in asked if not url.startswith((origin, "data:"))] == []
        assert [text for text in broken if "401" not in text and "400" not in text] == []


async def test_voices_for_the_key_before_do_not_replace_those_for_the_key(
    serve_sessions: Callable[..., Any], microphone: Path
) -> None:
    async with serve_sessions(None, api_key=("old", "new")) as served, browser(microphone) as page:
        asked, released = asyncio.Event(), asyncio.Event()

        async def voices(route: Any) -> None:
            key = route.request.headers["authorization"].removeprefix("Bearer ")
            if key == "old":
                asked.set()
                await released.wait()
            await route.fulfill(json={"voices": [key]})

        await page.route("**/v1/audio/voices", voices)
        await opened(page, served, key="old")
        await asked.wait()
        await page.fill("#key", "new")
        await page.press("#key", "Tab")
        shown = page.locator("#voices option")
        await async_api.expect(shown).to_have_attribute("value", "new")

        async with page.expect_response("**/v1/audio/voices"):
            released.set()

        await page.evaluate("new Promise(done => setTimeout(done, 200))")  # what the page does with the answer is done
        await async_api.expect(shown).to_have_attribute("value", "new")


async def test_a_message_is_sent_once_however_often_it_is_sent_while_its_file_is_read(
    serve_sessions: Callable[..., Any], microphone: Path
) -> None:
    async with serve_sessions(None) as served, browser(microphone) as page:
        bodies: list[Any] = []

        async def answer(route: Any) -> None:
            bodies.append(route.request.post_data_json)
            said = 'data: {"choices": [{"delta": {"content": "a tone"}}]}\n\n'
            await route.fulfill(content_type="text/event-stream", body=said)

        await page.route("**/v1/chat/completions", answer)
        await page.add_init_script(
            """const read = Blob.prototype.arrayBuffer;
            const released = new Promise((release) => { window.release = release; });
            Blob.prototype.arrayBuffer = async function () { await released; return read.call(this); };"""
        )
        await opened(page, served)
        await page.click("#tab-chat")
        await page.set_input_files("#chat-file", microphone)
        await page.fill("#chat-text", "what is this?")

        await page.click("#chat-form button.main")
        await page.click("#chat-form button.main")
        await page.fill("#chat-text", "the next one")
        await page.evaluate("window.release()")

        await async_api.expect(page.locator("#chat-log .model")).to_contain_text("a tone")
        (body,) = bodies
        (message,) = body["messages"]
        assert [part.get("text") for part in message["content"]] == [None, "what is this?"]
        assert await page.input_value("#chat-text") == "the next one"


async def test_the_microphone_is_let_go_when_the_user_disconnects_before_the_browser_opens_it(
    serve_sessions: Callable[..., Any], microphone: Path
) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker(400)) as served, browser(microphone) as page:
        await page.add_init_script(
            """const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
            const released = new Promise((release) => { window.release = release; });
            navigator.mediaDevices.getUserMedia = async (wanted) => {
              await released;
              return (window.opened = await open(wanted));
            };"""
        )
        await opened(page, served)
        await page.click("#connect")
        await async_api.expect(page.locator("#state")).to_contain_text("asking for the microphone")

        await page.click("#connect")
        await page.evaluate("window.release()")

        await page.wait_for_function("window.opened?.getTracks().every((track) => track.readyState === 'ended')")
        assert await page.inner_text("#state") == "not connected"


async def test_sound_that_was_under_way_when_the_user_interrupted_is_not_heard(
    serve_sessions: Callable[..., Any], microphone: Path
) -> None:
    async with serve_sessions(turns()) as served, browser(microphone) as page:
        server: Any = None
        interrupted = asyncio.Event()

        def say(kind: str, **fields: Any) -> None:
            server.send(json.dumps({"type": kind, **fields}))

        def accept(socket: Any) -> None:
            nonlocal server
            server = socket
            socket.on_message(lambda text: interrupted.set() if "response.cancel" in text else None)
            say("session.created")

        await page.route_web_socket("**/v1/realtime?*", accept)
        await opened(page, served)
        await page.click("#connect")
        await async_api.expect(page.locator("#state")).to_contain_text("listening")
        tone = (0.4 * np.sin(np.arange(60 * RATE) / 12) * 32767).astype("<i2").tobytes()
        sound = {"response_id": "first", "item_id": "item", "delta": base64.b64encode(tone).decode()}
        say("response.created", response={"id": "first"})
        say("response.output_audio.delta", **sound)
        await page.wait_for_function("document.getElementById('level-out').value > 0.1")

        await page.keyboard.press("Escape")
        await interrupted.wait()
        say("response.output_audio.delta", **sound)
        say("response.done", response={"id": "first", "status": "cancelled", "output": []})

        await async_api.expect(page.locator("#state")).to_contain_text("listening")
