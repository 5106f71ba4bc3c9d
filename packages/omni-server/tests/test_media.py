"""Reference audio: what is permitted, what is decoded, and what is refused."""

from __future__ import annotations

import base64
import io
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_core.errors import RequestError
from omni_core.speech import ReferenceAudio, SpeechTraits
from omni_server import media
from omni_server.context import ServerSettings
from omni_server.media import load_reference
from omni_server.reference_cache import ReferenceCache

TRAITS = SpeechTraits(sample_rate=24000, channels=1, clones=True)
WavMaker = Callable[..., bytes]
pytestmark = pytest.mark.anyio


async def load(source: str, **settings: Any) -> ReferenceAudio:
    return await load_reference(source, ServerSettings("model", **settings), TRAITS, "ref_audio")


async def refused(source: str, **settings: Any) -> str:
    with pytest.raises(RequestError) as caught:
        await load(source, **settings)
    assert caught.value.http_status == 400
    assert caught.value.param == "ref_audio"
    return str(caught.value)


def uri(data: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(data).decode()


async def test_base64_is_taken_in_every_usual_spelling(wav_maker: WavMaker) -> None:
    """E01."""
    wav = wav_maker() + b"\xfb\xef\xff\xfb"  # bytes whose base64 has + and /
    plain = base64.b64encode(wav).decode()
    assert {"+", "/"} <= set(plain)
    wrapped = "\r\n".join(plain[start : start + 76] for start in range(0, len(plain), 76))
    spellings = [
        plain,
        "data:;base64," + plain,
        "data:audio/wav;base64," + plain,
        "DATA:audio/wav;charset=x;BASE64," + plain,
        "data:audio/wav;base64," + wrapped,
        "data:audio/wav;base64," + base64.urlsafe_b64encode(wav).decode(),
        "data:audio/wav;base64," + plain.rstrip("="),
        "data:audio/wav;base64," + plain.replace("+", "%2B").replace("/", "%2F"),
    ]

    for spelling in spellings:
        audio = await load(spelling)
        assert (audio.sample_rate, audio.samples.shape, audio.samples.dtype) == (16000, (32000,), np.float32), spelling[:40]


@pytest.mark.parametrize(
    "source",
    ["", "data:", "data:audio/wav;base64,", "data:audio/wav;base64,@@@@", "data:audio/wav;base64,AAAAA", "hello", "data:,x"],
)
async def test_what_is_no_audio_is_refused(source: str) -> None:
    assert "padding" not in await refused(source)


async def test_channels_are_averaged() -> None:
    left, right = np.full(16000, 0.5, np.float32), np.full(16000, -0.25, np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([left, right], axis=1), 8000, format="WAV", subtype="FLOAT")

    audio = await load(uri(buffer.getvalue()))

    assert audio.sample_rate == 8000
    assert np.allclose(audio.samples, 0.125)


@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3", "AIFF"])
async def test_common_formats_are_decoded(form: str) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.3 * np.sin(np.arange(48000) / 10), 24000, format=form)

    audio = await load(uri(buffer.getvalue()))

    assert audio.sample_rate == 24000
    assert len(audio.samples) == pytest.approx(48000, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 31.0, 120.0])
async def test_wrong_duration_is_refused_with_the_numbers(seconds: float, wav_maker: WavMaker) -> None:
    message = await refused(uri(wav_maker(seconds)))

    assert f"{seconds:.2f} s" in message
    assert "1 to 30 s" in message


@pytest.mark.parametrize("seconds", [1.0, 30.0])
async def test_limits_of_the_duration_are_allowed(seconds: float, wav_maker: WavMaker) -> None:
    assert len((await load(uri(wav_maker(seconds)))).samples) == round(seconds * 16000)


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    samples = np.zeros(16000, np.float32)
    samples[8000] = value
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 8000, format="WAV", subtype="FLOAT")

    assert "finite" in await refused(uri(buffer.getvalue()))


async def test_cut_off_and_corrupt_files_are_refused_or_read_as_far_as_they_go(wav_maker: WavMaker) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.random.default_rng(0).uniform(-1, 1, 48000), 16000, format="FLAC")
    flac = buffer.getvalue()

    assert await refused(uri(flac[: len(flac) // 2]))
    assert await refused(uri(flac[:20]))
    assert await refused(uri(wav_maker()[:40]))
    assert await refused(uri(b"RIFF" + bytes(1000)))


async def test_wav_that_claims_hours_costs_no_memory(wav_maker: WavMaker) -> None:
    wav = bytearray(wav_maker())
    wav[4:8] = wav[40:44] = b"\xff\xff\xff\x7f"

    audio = await load(uri(bytes(wav)))  # libsndfile goes by the real size

    assert len(audio.samples) == 32000


async def test_too_many_bytes_are_refused_with_the_limit(wav_maker: WavMaker) -> None:
    assert "1000 bytes" in await refused(uri(wav_maker()), max_media_bytes=1000)


@pytest.mark.parametrize("source", ["ftp://example.com/a.wav", "gopher://x", "javascript:alert(1)"])
async def test_other_schemes_are_refused(source: str) -> None:
    assert "scheme" in await refused(source)


class TestLocalFiles:
    """Files, as --allowed-local-media-path permits."""

    @pytest.fixture
    def folder(self, tmp_path: Path, wav_maker: WavMaker) -> Path:
        folder = tmp_path / "voices"
        folder.mkdir()
        (folder / "a b.wav").write_bytes(wav_maker())
        (tmp_path / "secret.wav").write_bytes(wav_maker())
        return folder

    async def test_none_is_read_by_default(self, folder: Path) -> None:
        assert "--allowed-local-media-path" in await refused(str(folder / "a b.wav"))
        assert "--allowed-local-media-path" in await refused("file:///etc/passwd")

    async def test_files_below_the_folder_are_read(self, folder: Path) -> None:
        for source in (str(folder / "a b.wav"), f"file://{folder}/a%20b.wav", f"file://localhost{folder}/a%20b.wav"):
            assert len((await load(source, allowed_local_media_path=str(folder))).samples) == 32000

    async def test_nothing_outside_is_read_on_any_way(self, folder: Path, tmp_path: Path) -> None:
        (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
        (folder / "up").symlink_to(tmp_path)
        (tmp_path / "voices-too").mkdir()
        ways = [
            str(tmp_path / "secret.wav"),
            str(folder / "../secret.wav"),
            f"file://{folder}/%2e%2e/secret.wav",
            str(folder / "link.wav"),
            str(folder / "up/secret.wav"),
            str(tmp_path / "voices-too/x.wav"),
            "/etc/passwd",
        ]

        for way in ways:
            assert "outside the folder" in await refused(way, allowed_local_media_path=str(folder)), way

    async def test_links_that_stay_inside_are_followed(self, folder: Path) -> None:
        (folder / "link.wav").symlink_to(folder / "a b.wav")

        assert await load(str(folder / "link.wav"), allowed_local_media_path=str(folder))

    async def test_what_is_no_readable_file_is_refused(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        (folder / "loop").symlink_to(folder / "loop")
        names = ["missing.wav", "pipe", "loop", "", "a\0b", "a b.wav/x"]

        for name in names:
            assert await refused(f"{folder}/{name}", allowed_local_media_path=str(folder)), name

    async def test_another_host_is_refused(self, folder: Path) -> None:
        assert "another host" in await refused(f"file://server{folder}/a.wav", allowed_local_media_path=str(folder))

    @pytest.mark.parametrize("source", ["file://[half/a.wav", "file://a\u2100b/a.wav"], ids=["bracket", "look-alike"])
    async def test_a_url_that_is_none_is_refused(self, source: str, folder: Path) -> None:
        assert "no file URL" in await refused(source, allowed_local_media_path=str(folder))


class TestUrls:
    """URLs, as --allowed-media-domains permits."""

    @pytest.fixture(autouse=True)
    def no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)

    @pytest.fixture
    def site(self, wav_maker: WavMaker) -> Iterator[str]:
        """A site of one good file and many bad answers; its URL."""
        wav = wav_maker()
        stuck = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                name = "to//loop" if name == "loop" else name
                if name.startswith("to/"):
                    self.send_response(302)
                    self.send_header("Location", name.removeprefix("to/"))
                    self.end_headers()
                    return
                if name == "stuck":
                    stuck.wait(30)
                    return
                self.send_response(404 if name == "missing" else 200)
                if name == "compressed":
                    self.send_header("Content-Encoding", "gzip")
                self.end_headers()
                try:
                    for _ in range(200 if name == "large" else 1):
                        self.wfile.write(wav)
                except OSError:  # the client has read enough
                    return

            def log_message(self, format: str, *args: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        stuck.set()
        server.shutdown()
        thread.join()
        server.server_close()

    ALLOWED = frozenset({"127.0.0.1"})

    async def test_none_is_fetched_by_default(self, site: str) -> None:
        message = await refused(f"{site}/good.wav")

        assert "127.0.0.1" in message
        assert "--allowed-media-domains" in message

    async def test_listed_host_is_fetched(self, site: str) -> None:
        assert len((await load(f"{site}/good.wav", allowed_media_domains=self.ALLOWED)).samples) == 32000

    async def test_redirect_within_listed_hosts_is_followed(self, site: str) -> None:
        assert await load(f"{site}/to//to/{site}/good.wav", allowed_media_domains=self.ALLOWED)

    async def test_redirect_to_another_host_is_refused(self, site: str) -> None:
        port = site.rpartition(":")[2]

        message = await refused(f"{site}/to/http://localhost:{port}/good.wav", allowed_media_domains=self.ALLOWED)

        assert "`localhost`" in message

    @pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://"])
    async def test_redirect_to_something_else_is_refused(self, site: str, target: str) -> None:
        assert await refused(f"{site}/to/{target}", allowed_media_domains=self.ALLOWED)

    async def test_endless_redirects_end(self, site: str) -> None:
        assert "redirects" in await refused(f"{site}/loop", allowed_media_domains=self.ALLOWED)

    async def test_other_answers_are_refused(self, site: str) -> None:
        assert "404" in await refused(f"{site}/missing", allowed_media_domains=self.ALLOWED)
        assert "compressed" in await refused(f"{site}/compressed", allowed_media_domains=self.ALLOWED)

    async def test_download_stops_at_the_limit(self, site: str) -> None:
        message = await refused(f"{site}/large", allowed_media_domains=self.ALLOWED, max_media_bytes=100_000)

        assert "100000 bytes" in message

    async def test_slow_site_is_given_up(self, site: str) -> None:
        message = await refused(f"{site}/stuck", allowed_media_domains=self.ALLOWED, media_timeout=0.2)

        assert "within 0.2 s" in message

    async def test_dead_site_is_refused(self) -> None:
        assert "could not be fetched" in await refused("http://127.0.0.1:9/x", allowed_media_domains=self.ALLOWED)

    @pytest.mark.parametrize(
        "source", ["http://127.0.0.1@evil.example/", "http://evil.example#127.0.0.1", "http://evil.example\\@127.0.0.1/"]
    )
    async def test_host_in_disguise_is_refused(self, source: str) -> None:
        assert await refused(source, allowed_media_domains=self.ALLOWED)


class TestCache:
    """TT-19."""

    async def test_data_uri_is_decoded_once(self, wav_maker: WavMaker, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, decoded = ReferenceCache(), _count_decodings(monkeypatch)
        source = uri(wav_maker())

        clips = [await load_reference(source, ServerSettings("m"), TRAITS, "ref_audio", cache) for _ in range(3)]

        assert len(decoded) == 1
        assert all((clip.samples == clips[0].samples).all() for clip in clips)
        assert len({id(clip.samples) for clip in clips}) == 3

    async def test_local_file_that_changed_is_read_again(
        self, tmp_path: Path, wav_maker: WavMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, decoded = ReferenceCache(), _count_decodings(monkeypatch)
        settings = ServerSettings("m", allowed_local_media_path=str(tmp_path))
        path = tmp_path / "a.wav"

        async def seconds(source: str) -> float:
            audio = await load_reference(source, settings, TRAITS, "ref_audio", cache)
            return len(audio.samples) / audio.sample_rate

        path.write_bytes(wav_maker(2.0))
        assert [await seconds(str(path)), await seconds(f"file://{path}")] == [2.0, 2.0]
        path.write_bytes(wav_maker(3.0))
        assert await seconds(str(path)) == 3.0
        os.utime(path, ns=(1, 1))
        assert await seconds(str(path)) == 3.0
        assert len(decoded) == 3

    async def test_cached_file_is_still_subject_to_permission(self, tmp_path: Path, wav_maker: WavMaker) -> None:
        cache, path = ReferenceCache(), tmp_path / "a.wav"
        path.write_bytes(wav_maker())
        allowed = ServerSettings("m", allowed_local_media_path=str(tmp_path))
        await load_reference(str(path), allowed, TRAITS, "ref_audio", cache)

        with pytest.raises(RequestError, match="reads none"):
            await load_reference(str(path), ServerSettings("m"), TRAITS, "ref_audio", cache)
        path.unlink()
        with pytest.raises(RequestError, match="cannot be read"):
            await load_reference(str(path), allowed, TRAITS, "ref_audio", cache)

    async def test_what_was_refused_is_not_kept(self, wav_maker: WavMaker) -> None:
        cache = ReferenceCache()

        with pytest.raises(RequestError, match="lasts"):
            await load_reference(uri(wav_maker(0.5)), ServerSettings("m"), TRAITS, "ref_audio", cache)

        assert len(cache) == 0


def _count_decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    decoded: list[int] = []
    decode = media.decode_reference

    def counting(data: bytes, *rest: Any) -> ReferenceAudio:
        decoded.append(len(data))
        return decode(data, *rest)

    monkeypatch.setattr(media, "decode_reference", counting)
    return decoded


@pytest.mark.parametrize(
    ("usable", "shape"), [(1, (48000,)), (2, (48000, 2)), (6, (48000, 2))], ids=["a mono model", "a stereo model", "more"]
)
async def test_channels_are_kept_as_far_as_the_model_can_use_them(usable: int, shape: tuple[int, ...]) -> None:
    traits = SpeechTraits(sample_rate=48000, channels=2, clones=True, reference_channels=usable)
    file = io.BytesIO()
    soundfile.write(file, np.tile(np.float32([0.5, -0.25]), (48000, 1)), 48000, "FLOAT", format="wav")

    reference = media.decode_reference(file.getvalue(), traits, "ref_audio")

    assert reference.samples.shape == shape
    assert reference.samples[0].tolist() == (0.125 if usable == 1 else [0.5, -0.25])


async def test_one_channel_is_mono_for_a_stereo_model_too(wav_maker: WavMaker) -> None:
    traits = SpeechTraits(sample_rate=48000, channels=2, clones=True, reference_channels=2)

    assert media.decode_reference(wav_maker(), traits, "ref_audio").samples.ndim == 1
