"""/v1/audio/voices, and speech in the voices that were uploaded (issue 6, B25)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zipfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_core.speech import ReferenceAudio, SpeechTraits
from omni_server import voice_library, voices
from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.fake_engine import TRAITS, FakeEngine

pytestmark = pytest.mark.anyio

FIELDS = frozenset({"ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding"})
CLONING = replace(TRAITS, accepts=FIELDS, reference_needs_text=True)
STEREO = replace(CLONING, reference_channels=2, voices=(), default_voice=None)


class Desk:
    """A client of a server with a folder of voices."""

    def __init__(self, client: Any, engine: FakeEngine, folder: Path) -> None:
        self.client = client
        self.engine = engine
        self.folder = folder

    async def upload(self, data: bytes | None = None, name: str = "Alice", **fields: Any) -> httpx.Response:
        """Upload a recording."""
        form = {"name": name, "consent": "signed by Alice", **fields}
        files = {} if data is None else {"audio_sample": ("voice.wav", data, "audio/wav")}
        given = {key: value for key, value in form.items() if value is not None}
        # A form without a file would be sent as another media type.
        files = {**files, **{key: value if isinstance(value, tuple) else (None, value) for key, value in given.items()}}
        return await self.client.post("/v1/audio/voices", files=files)

    async def refused(self, param: str | None, data: bytes | None = None, status: int = 400, **fields: Any) -> str:
        """Upload; check that it is refused with an error that names a field, nothing is kept, and the server is well."""
        before = self.files()
        response = await self.upload(data, **fields)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, error
        assert "traceback" not in error["message"].lower()
        assert self.files() == before
        assert (await self.client.get("/health")).status_code == 200
        assert (await self.client.speak()).status_code == 200
        return str(error["message"])

    async def listed(self) -> dict[str, Any]:
        """Return the list of voices."""
        response = await self.client.get("/v1/audio/voices")
        assert response.status_code == 200
        found: dict[str, Any] = response.json()
        return found

    def files(self) -> list[str]:
        """Return what is in the folder and beside it."""
        return sorted(str(path.relative_to(self.folder.parent)) for path in self.folder.parent.rglob("*"))


@pytest.fixture
def open_desk(make_client: Any, tmp_path: Path) -> Callable[..., Desk]:
    """Start a server, which may be one that was stopped: the folder stays."""

    def start(traits: SpeechTraits = CLONING, **settings: Any) -> Desk:
        engine = FakeEngine(traits=traits)
        folder = tmp_path / "kept" / "voices"
        return Desk(make_client(engine, **{"voices_dir": str(folder), **settings}), engine, folder)

    return start


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk()


def recording(
    seconds: float = 2.0, rate: int = 24000, channels: int = 1, form: str = "WAV", subtype: str | None = None
) -> bytes:
    times = np.arange(round(seconds * rate)) / rate
    tones = [0.3 * np.sin(2 * np.pi * (200 + 50 * channel) * times) for channel in range(channels)]
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack(tones, axis=1), rate, format=form, subtype=subtype)
    return buffer.getvalue()


def as_uri(data: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(data).decode()


class TestLife:
    """A voice is uploaded, listed, used, kept over a restart, and deleted."""

    async def test_uploaded_voice_is_listed(self, desk: Desk) -> None:
        data = recording()

        response = await desk.upload(data, ref_text="What I say.", speaker_description="calm")
        found = await desk.listed()

        answer = response.json()
        assert response.status_code == 200, response.text
        assert (answer["id"], answer["name"], answer["object"], answer["type"]) == (
            "Alice",
            "Alice",
            "audio.voice",
            "audio_sample",
        )
        assert found["voices"] == ["Vivian", "Ryan", "Alice"]
        entry = found["uploaded_voices"][0]
        assert entry == answer["voice"]
        assert entry.pop("created_at") == answer["created_at"] > 1e9
        assert entry == {
            "name": "Alice",
            "consent": "signed by Alice",
            "file_size": len(data),
            "mime_type": "audio/wav",
            "embedding_source": "audio",
            "embedding_dim": None,
            "ref_text": "What I say.",
            "speaker_description": "calm",
        }

    @pytest.mark.parametrize("name", ["Alice", "ALICE", "alice", "ａｌｉｃｅ"])
    async def test_speech_in_it_is_speech_with_its_recording_and_words(self, name: str, desk: Desk) -> None:
        data = recording()
        await desk.upload(data, ref_text="What I say.")

        spoken = await desk.client.speak(voice=name)
        direct = await desk.client.speak(ref_audio=as_uri(data), ref_text="What I say.")

        assert spoken.status_code == 200, spoken.text
        assert spoken.content == direct.content
        by_name, by_field = desk.engine.prompts
        assert by_name.voice is None
        assert by_name.ref_text == by_field.ref_text == "What I say."
        assert by_name.x_vector_only_mode is None
        assert by_name.ref_audio is not None
        assert by_field.ref_audio is not None
        assert by_name.ref_audio.sample_rate == by_field.ref_audio.sample_rate == 24000
        np.testing.assert_array_equal(by_name.ref_audio.samples, by_field.ref_audio.samples)

    async def test_voice_without_words_is_imitated_without_them(self, desk: Desk) -> None:
        await desk.upload(recording())

        assert (await desk.client.speak(voice="alice")).status_code == 200
        assert (await desk.client.speak(voice="alice", x_vector_only_mode=True)).status_code == 200

        assert [(prompt.ref_text, prompt.x_vector_only_mode) for prompt in desk.engine.prompts] == [(None, True)] * 2

    async def test_model_that_needs_no_words_is_not_told_to_do_without(self, open_desk: Callable[..., Desk]) -> None:
        desk = open_desk(replace(CLONING, reference_needs_text=False))
        await desk.upload(recording())

        await desk.client.speak(voice="alice")

        assert [(prompt.ref_text, prompt.x_vector_only_mode) for prompt in desk.engine.prompts] == [(None, None)]

    async def test_words_stay_away_where_the_model_or_the_request_does_without(
        self, desk: Desk, open_desk: Callable[..., Desk]
    ) -> None:
        await desk.upload(recording(), ref_text="What I say.")
        other = open_desk(replace(CLONING, accepts=frozenset({"ref_audio"})))

        await desk.client.speak(voice="alice", x_vector_only_mode=True)
        await other.client.speak(voice="alice")

        assert [(prompt.ref_text, prompt.x_vector_only_mode) for prompt in desk.engine.prompts] == [(None, True)]
        assert [(prompt.ref_text, prompt.x_vector_only_mode) for prompt in other.engine.prompts] == [(None, None)]

    async def test_channels_are_those_that_the_model_can_use(self, open_desk: Callable[..., Desk]) -> None:
        """The same folder serves a model for stereo and one for mono."""
        stereo = open_desk(STEREO)
        await stereo.upload(recording(channels=2))
        mono = open_desk()

        await stereo.client.speak(voice="alice")
        await mono.client.speak(voice="alice")

        kept = stereo.engine.prompts[0].ref_audio
        folded = mono.engine.prompts[0].ref_audio
        assert kept is not None
        assert folded is not None
        assert kept.samples.shape == (48000, 2)
        np.testing.assert_allclose(folded.samples, kept.samples.mean(axis=1), atol=1e-6)

    async def test_voices_are_kept_over_a_restart(self, desk: Desk, open_desk: Callable[..., Desk]) -> None:
        await desk.upload(recording(), ref_text="What I say.")
        before = await desk.listed()

        later = open_desk()

        assert await later.listed() == before
        assert (await later.client.speak(voice="alice")).status_code == 200

    async def test_deleted_voice_is_gone_with_its_file(self, desk: Desk) -> None:
        await desk.upload(recording())

        response = await desk.client.delete("/v1/audio/voices/ALICE")

        assert response.json() == {"id": "ALICE", "object": "audio.voice.deleted", "deleted": True, "success": True}
        assert (await desk.listed())["uploaded_voices"] == []
        assert list(desk.folder.iterdir()) == []
        message = await desk.client.refused(400, "voice", voice="alice")
        assert "Vivian" in message
        assert (await desk.client.delete("/v1/audio/voices/ALICE")).status_code == 404

    async def test_request_that_has_begun_goes_on_when_its_voice_is_deleted(self, desk: Desk) -> None:
        await desk.upload(recording())
        running = asyncio.create_task(desk.client.speak("wait-later", voice="alice"))
        await asyncio.wait_for(desk.engine.working.wait(), 10)

        assert (await desk.client.delete("/v1/audio/voices/alice")).status_code == 200
        desk.engine.go_on.set()

        assert (await asyncio.wait_for(running, 10)).status_code == 200

    async def test_recording_is_kept_in_memory_as_reference_audio_is(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """TT-19."""
        await desk.upload(recording(), ref_text="Words.")
        cache = desk.client.app.state.context.references

        await desk.client.speak(voice="alice")
        held = cache.nbytes
        monkeypatch.setattr(desk.client.app.state.context.voices.store, "find", None)  # read again, this would fail
        await desk.client.speak(voice="ALICE")

        assert (held, cache.nbytes, len(cache)) == (2 * 24000 * 4, 2 * 24000 * 4, 1)
        assert [prompt.ref_text for prompt in desk.engine.prompts] == ["Words."] * 2

    async def test_replaced_voice_is_the_new_one(self, open_desk: Callable[..., Desk]) -> None:
        desk = open_desk(voice_policy="overwrite")
        await desk.upload(recording(2.0))
        await desk.client.speak(voice="alice")

        assert (await desk.upload(recording(3.0), name="ALICE")).status_code == 200
        await desk.client.speak(voice="alice")

        lengths = [len(prompt.ref_audio.samples) for prompt in desk.engine.prompts if prompt.ref_audio is not None]
        assert lengths == [48000, 72000]
        assert [entry["name"] for entry in (await desk.listed())["uploaded_voices"]] == ["ALICE"]

    async def test_voice_that_is_replaced_while_it_is_looked_up_has_the_words_of_its_recording(
        self, open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk = open_desk(voice_policy="overwrite")
        await desk.upload(recording(2.0), ref_text="Old words.")
        await desk.client.speak(voice="alice")
        store, read = desk.client.app.state.context.voices.store, voice_library.read_facts

        def replace_and_read(path: Path) -> Any:
            monkeypatch.setattr(voice_library, "read_facts", read)
            facts, voice = replace(read(path), ref_text="New words."), store.find("alice")
            store.add(facts, ReferenceAudio(np.tile(voice.audio.samples, 2), 24000), None)
            return read(path)

        monkeypatch.setattr(voice_library, "read_facts", replace_and_read)
        await desk.client.speak(voice="alice")

        found = [(prompt.ref_text, len(prompt.ref_audio.samples)) for prompt in desk.engine.prompts if prompt.ref_audio]
        assert found == [("Old words.", 48000), ("New words.", 96000)]

    async def test_embedding_is_a_voice_too(self, desk: Desk) -> None:
        response = await desk.upload(speaker_embedding="[0.5, -1, 0.25]")
        await desk.client.speak(voice="alice")

        entry = response.json()["voice"]
        assert (entry["embedding_source"], entry["embedding_dim"]) == ("direct", 3)
        assert desk.engine.prompts[0].speaker_embedding == (0.5, -1.0, 0.25)

    @pytest.mark.engine  # the SDK is in the environment of the engine tests
    async def test_stock_openai_client_creates_and_deletes_a_voice(self, desk: Desk) -> None:
        openai = pytest.importorskip("openai")
        httpx2 = pytest.importorskip("httpx2")
        transport = httpx2.ASGITransport(desk.client.app)
        http = httpx2.AsyncClient(transport=transport)
        client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)

        voice = await client.audio.voices.create(name="Alice", consent="cons_1", audio_sample=("a.wav", recording()))
        gone = await client.audio.voices.delete(voice.id)
        await http.aclose()

        assert (voice.id, voice.name, voice.object) == ("Alice", "Alice", "audio.voice")
        assert gone.deleted


class TestRecordings:
    """What a recording may be; everything else is a 4xx that names the field and leaves the server well."""

    @pytest.mark.parametrize("channels", [1, 2, 8])
    @pytest.mark.parametrize("rate", [8000, 11025, 44100, 192000])
    async def test_rates_and_channels_of_recordings(self, rate: int, channels: int, desk: Desk) -> None:
        response = await desk.upload(recording(1.0, rate, channels, subtype="PCM_16"))

        assert response.status_code == 200, response.text
        assert (await desk.client.speak(voice="alice")).status_code == 200
        audio = desk.engine.prompts[-1].ref_audio
        assert audio is not None
        assert (audio.sample_rate, audio.samples.shape) == (rate, (rate,))

    @pytest.mark.parametrize(
        ("form", "subtype", "mime"),
        [
            ("WAV", "PCM_24", "audio/wav"),
            ("WAV", "FLOAT", "audio/wav"),
            ("WAV", "ULAW", "audio/wav"),
            ("WAV", "ALAW", "audio/wav"),
            ("FLAC", None, "audio/flac"),
            ("OGG", "OPUS", "audio/ogg"),
            ("MP3", None, "audio/mpeg"),
        ],
    )
    async def test_formats(self, form: str, subtype: str | None, mime: str, desk: Desk) -> None:
        response = await desk.upload(recording(form=form, subtype=subtype))

        assert response.json()["voice"]["mime_type"] == mime

    @pytest.mark.parametrize("seconds", [1.0, 30.0])
    async def test_shortest_and_longest(self, seconds: float, desk: Desk) -> None:
        assert (await desk.upload(recording(seconds, 8000))).status_code == 200

    @pytest.mark.parametrize(
        ("data", "mentions"),
        [
            pytest.param(recording(31.0, 8000), "31.00 s", id="31 s"),
            pytest.param(recording(0.5), "0.50 s", id="0.5 s"),
            pytest.param(recording(600.0, 8000, form="MP3"), "s", id="10 minutes"),
            pytest.param(recording(rate=7999), "7999 Hz", id="7999 Hz"),
            pytest.param(recording(1.0, 192001), "192001 Hz", id="192001 Hz"),
            pytest.param(recording(channels=9), "9 channels", id="9 channels"),
            pytest.param(b"", "empty", id="0 bytes"),
            pytest.param(b"not a sound" * 100, "not audio", id="a text"),
            pytest.param(recording()[:50], "s", id="cut in the header"),
            pytest.param(b"\xff\xd8\xff\xe0" + bytes(5000), "not audio", id="a picture"),
        ],
    )
    async def test_recordings_that_are_none(self, data: bytes, mentions: str, desk: Desk) -> None:
        assert mentions in await desk.refused("audio_sample", data)

    async def test_size_limit_is_exact(self, desk: Desk) -> None:
        """10 MB, and one byte more."""
        base = recording(2.0)
        limit = voices.MAX_SAMPLE_BYTES
        assert limit == 10 * 1024 * 1024

        message = await desk.refused("audio_sample", base + bytes(limit + 1 - len(base)))

        assert str(limit) in message
        assert (await desk.upload(base + bytes(limit - len(base)))).status_code == 200

    async def test_far_too_large_upload_is_refused_by_its_length(self, desk: Desk) -> None:
        response = await desk.upload(bytes(41 * 1024 * 1024))

        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"

    async def test_far_too_large_upload_of_unknown_length_is_refused_as_such(self, desk: Desk) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.wav"\r\n\r\n'
            for _ in range(41):
                yield bytes(1024 * 1024)

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        response = await desk.client.post("/v1/audio/voices", content=pieces(), headers=headers)

        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"

    @pytest.mark.parametrize("level", [0.0, 0.0005])
    async def test_silent_recording_is_refused(self, level: float, desk: Desk) -> None:
        buffer = io.BytesIO()
        soundfile.write(buffer, np.full(48000, level), 24000, format="WAV", subtype="FLOAT")

        assert "silent" in await desk.refused("audio_sample", buffer.getvalue())

    async def test_samples_that_are_no_numbers_are_refused(self, desk: Desk) -> None:
        buffer = io.BytesIO()
        soundfile.write(buffer, np.full(48000, np.nan), 24000, format="WAV", subtype="FLOAT")

        assert "finite" in await desk.refused("audio_sample", buffer.getvalue())

    async def test_header_that_lies_about_the_length_is_refused_or_read_as_it_is(self, desk: Desk) -> None:
        data = bytearray(recording(2.0))
        data[40:44] = (2**31).to_bytes(4, "little")

        response = await desk.upload(bytes(data))

        assert response.status_code in (200, 400)
        if response.status_code == 200:
            await desk.client.speak(voice="alice")
            audio = desk.engine.prompts[-1].ref_audio
            assert audio is not None
            assert len(audio.samples) == 48000

    async def test_zip_is_no_recording(self, desk: Desk) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("../../evil.wav", recording())

        await desk.refused("audio_sample", buffer.getvalue())

    @pytest.mark.parametrize("extra", [b"<script>alert(1)</script>", b"#!/bin/sh\nrm -rf /\n"])
    async def test_nothing_but_the_sound_of_a_polyglot_is_kept(self, extra: bytes, desk: Desk) -> None:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("evil.txt", extra)

        response = await desk.upload(recording() + archive.getvalue() + extra)

        assert response.status_code == 200
        (kept,) = [path.read_bytes() for path in desk.folder.iterdir()]
        assert extra not in kept
        assert b"evil.txt" not in kept
        assert not zipfile.is_zipfile(io.BytesIO(kept))


class TestNames:
    """What a voice may be called."""

    @pytest.mark.parametrize(
        "name",
        ["Zoë", "王小明", "محمد", "अनु", "a", "Alice B.-2_x", "CON", "x" * 64, "Ａｌｉｃｅ", "e\u0301va"],
    )
    async def test_names_of_people_are_taken(self, name: str, desk: Desk) -> None:
        response = await desk.upload(recording(), name=name)

        assert response.status_code == 200, response.text
        assert (await desk.client.speak(voice=name)).status_code == 200
        assert (await desk.client.delete(f"/v1/audio/voices/{name}")).status_code == 200

    @pytest.mark.parametrize(
        "name",
        [
            "../../tmp/x",
            "a/b",
            "a\\b",
            ".",
            "..",
            ".hidden",
            "",
            " ",
            " alice",
            "alice ",
            "x" * 65,
            "x" * 300,
            "😀",
            "a\nb",
            "a\0b",
            "a:b",
            "~root",
            "%2e%2e",
            "\u202ealice",
            "\u0301a",
            "default",
            "DEFAULT",
            "ﬁ" * 40,
        ],
    )
    async def test_other_names_are_refused(self, name: str, desk: Desk) -> None:
        """B25: nothing is written anywhere."""
        await desk.refused("name", recording(), name=name)

    @pytest.mark.parametrize("name", ["Vivian", "vivian", "VIVIAN", "Ｖｉｖｉａｎ"])
    async def test_names_of_the_models_voices_are_reserved(self, name: str, desk: Desk) -> None:
        message = await desk.refused("name", recording(), status=409, name=name)

        assert "reserved" in message

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("Alice", "alice"),
            ("Straße", "STRASSE"),
            ("Zoe\u0308", "zoë"),
            ("ﬁn", "FIN"),
            ("Ａｌｉｃｅ", "Alice"),
            ("ΣΑΣ", "σας"),
        ],
    )
    async def test_names_that_differ_in_case_or_spelling_clash(self, first: str, second: str, desk: Desk) -> None:
        await desk.upload(recording(), name=first)

        assert "already" in await desk.refused("name", recording(), status=409, name=second)

    async def test_of_two_uploads_at_once_one_wins(self, desk: Desk) -> None:
        long, short = recording(3.0), recording(2.0)

        answers = await asyncio.gather(*(desk.upload(data, name=name) for data in (long, short) for name in ("Alice", "ALICE")))

        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        assert {answer.json()["error"]["param"] for answer in answers if answer.status_code == 409} == {"name"}
        assert len(list(desk.folder.iterdir())) == 1

    async def test_uploads_of_many_names_at_once_are_all_kept(self, desk: Desk) -> None:
        """B25: 20 uploads at once."""
        data = recording(1.0, 8000)

        answers = await asyncio.gather(*(desk.upload(data, name=f"voice {number}") for number in range(20)))

        assert [answer.status_code for answer in answers] == [200] * 20
        assert len((await desk.listed())["uploaded_voices"]) == 20

    async def test_number_of_voices_is_limited(self, open_desk: Callable[..., Desk]) -> None:
        desk = open_desk(max_voices=1)
        await desk.upload(recording())

        assert "--max-voices" in await desk.refused("name", recording(), status=409, name="Bob")

    async def test_path_as_the_name_to_delete_finds_nothing(self, desk: Desk) -> None:
        await desk.upload(recording())
        before = desk.files()

        for name in ("..%2f..%2fx", "a/b", "%2e", "%ff", "x" * 5000, "%00"):
            response = await desk.client.delete(f"/v1/audio/voices/{name}")
            assert response.status_code == 404, name
            assert response.json()["error"]["param"] in ("name", None)
        assert desk.files() == before


class TestForms:
    """What else can be wrong with a form."""

    @pytest.mark.parametrize("consent", [None, "", "  ", "false", "No"])
    async def test_consent_is_required(self, consent: str | None, desk: Desk) -> None:
        await desk.refused("consent", recording(), consent=consent)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"ref_text": "x" * 2001}, "ref_text"),
            ({"ref_text": ""}, "ref_text"),
            ({"ref_text": "a\0b"}, "ref_text"),
            ({"speaker_description": "x" * 501}, "speaker_description"),
            ({"consent": "x" * 501}, "consent"),
            ({"type": "prompt"}, "type"),
            ({"volume": "3"}, "volume"),
            ({"speaker_embedding": "[1, 2]"}, "audio_sample"),
            ({"ref_audio": ("b.wav", b"x")}, "ref_audio"),
        ],
        ids=lambda item: str(item)[:30],
    )
    async def test_field_that_cannot_be_used_is_named(self, fields: dict[str, Any], param: str, desk: Desk) -> None:
        await desk.refused(param, recording(), **fields)

    @pytest.mark.parametrize("embedding", ["", "[", "{}", '["a"]', "[NaN]", "[]", "[1e999]", "7"])
    async def test_embedding_that_is_none_is_refused(self, embedding: str, desk: Desk) -> None:
        await desk.refused("speaker_embedding", speaker_embedding=embedding)

    async def test_no_name_or_no_recording_is_refused(self, desk: Desk) -> None:
        await desk.refused("audio_sample")
        response = await desk.client.post("/v1/audio/voices", files={"audio_sample": recording(), "consent": (None, "yes")})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "name")

    async def test_recording_that_is_no_file_is_refused(self, desk: Desk) -> None:
        form = {"name": (None, "Alice"), "consent": (None, "yes"), "audio_sample": (None, "abc")}

        response = await desk.client.post("/v1/audio/voices", files=form)

        assert (response.status_code, response.json()["error"]["param"]) == (400, "audio_sample")

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            ("application/json", b'{"name": "Alice"}'),
            ("application/x-www-form-urlencoded", b"name=Alice"),
            ("multipart/form-data", b"no boundary"),
            ("multipart/form-data; boundary=x", b"junk"),
            ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n"),
            ("multipart/form-data; boundary=x", b"--x\r\n" + b"a: b\r\n" * 1000 + b"\r\n--x--\r\n"),
        ],
        ids=["json", "urlencoded", "no boundary", "junk", "no name", "many headers"],
    )
    async def test_body_that_is_no_form_is_refused(self, content_type: str, body: bytes, desk: Desk) -> None:
        response = await desk.client.post("/v1/audio/voices", content=body, headers={"content-type": content_type})

        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"

    async def test_field_that_comes_twice_is_refused(self, desk: Desk) -> None:
        form = [("name", (None, "Alice")), ("name", (None, "Bob")), ("consent", (None, "yes")), ("audio_sample", recording())]

        response = await desk.client.post("/v1/audio/voices", files=form)

        assert (response.status_code, response.json()["error"]["param"]) == (400, "name")


class TestModels:
    """What the served model's declaration says, and nothing else, decides."""

    async def test_model_that_does_not_clone_takes_no_upload(self, open_desk: Callable[..., Desk]) -> None:
        await open_desk().upload(recording())
        desk = open_desk(replace(TRAITS, clones=False))

        assert "does not imitate" in await desk.refused("audio_sample", recording(), name="Bob")
        found = await desk.listed()
        assert found["voices"] == ["Vivian", "Ryan"]
        assert [entry["name"] for entry in found["uploaded_voices"]] == ["Alice"]
        await desk.client.refused(400, "voice", voice="alice")

    async def test_model_without_embeddings_takes_none(self, open_desk: Callable[..., Desk]) -> None:
        await open_desk().upload(speaker_embedding="[1, 2]")
        desk = open_desk(replace(CLONING, accepts=frozenset({"ref_audio"})))

        await desk.refused("speaker_embedding", speaker_embedding="[1, 2]", name="Bob")
        await desk.client.refused(400, "voice", voice="alice")

    async def test_models_own_voice_comes_first(self, open_desk: Callable[..., Desk]) -> None:
        """A folder may come from a server whose model had no such voice."""
        await open_desk(STEREO).upload(recording(), name="Vivian")
        desk = open_desk()

        await desk.client.speak(voice="vivian")

        assert (desk.engine.prompts[0].voice, desk.engine.prompts[0].ref_audio) == ("vivian", None)
        assert (await desk.listed())["voices"] == ["Vivian", "Ryan"]

    @pytest.mark.parametrize("field", ["ref_audio", "ref_text", "speaker_embedding"])
    async def test_voice_and_another_voice_exclude_each_other(self, field: str, desk: Desk) -> None:
        await desk.upload(recording())
        value = {"ref_audio": as_uri(recording()), "ref_text": "Words.", "speaker_embedding": [1.0]}[field]

        await desk.client.refused(400, field, voice="alice", **{field: value})

    async def test_unknown_voice_is_refused_with_those_that_there_are(self, open_desk: Callable[..., Desk]) -> None:
        """B24."""
        desk = open_desk(STEREO)
        await desk.upload(recording())

        message = await desk.client.refused(400, "voice", voice="nobody")

        assert "Alice" in message
        assert (await desk.client.speak(voice="default")).status_code == 200

    async def test_server_without_a_folder_keeps_nothing(self, open_desk: Callable[..., Desk]) -> None:
        desk = open_desk(voices_dir=None)

        response = await desk.upload(recording())

        assert response.status_code == 501
        assert (await desk.listed())["uploaded_voices"] == []
        assert (await desk.client.delete("/v1/audio/voices/alice")).status_code == 404

    async def test_websocket_speaks_in_an_uploaded_voice(self, desk: Desk, talk: Any) -> None:
        await desk.upload(recording(), ref_text="Words.")
        talking = talk(desk.client.app)
        await talking.next()

        talking.say("session.config", voice="alice")
        talking.say("input.text", text="One. Two.")
        talking.say("session.close")
        code, _ = await talking.closed()

        assert code == 1000
        assert [(prompt.text, prompt.ref_text) for prompt in desk.engine.prompts] == [("One.", "Words."), ("Two.", "Words.")]

    async def test_key_is_needed(self, open_desk: Callable[..., Desk]) -> None:
        desk = open_desk(api_key=("key",))

        assert (await desk.upload(recording())).status_code == 401
        assert (await desk.client.get("/v1/audio/voices")).status_code == 401
        assert (await desk.client.delete("/v1/audio/voices/x")).status_code == 401


class TestFiles:
    """What is in the folder besides voices."""

    async def test_files_that_hold_no_voice_are_left_out_with_a_warning(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        await desk.upload(recording())
        (desk.folder / "junk.safetensors").write_bytes(b"junk" * 100)
        (desk.folder / "notes.txt").write_text("mine")
        (desk.folder / "link.safetensors").symlink_to("/etc/passwd")

        found = await desk.listed()

        assert [entry["name"] for entry in found["uploaded_voices"]] == ["Alice"]
        assert [record.levelname for record in caplog.records if "junk.safetensors" in record.getMessage()]

    async def test_damaged_voice_is_the_servers_fault_and_harms_no_other(self, desk: Desk) -> None:
        await desk.upload(recording())
        await desk.upload(recording(), name="Bob")
        path = desk.client.app.state.context.voices.store.path("alice")
        path.write_bytes(path.read_bytes()[:1000])

        assert (await desk.client.speak(voice="alice")).status_code == 500
        assert (await desk.client.speak(voice="bob")).status_code == 200
        assert (await desk.client.delete("/v1/audio/voices/alice")).status_code == 200

    async def test_folder_that_cannot_be_written_is_an_error_with_the_way_out(
        self, open_desk: Callable[..., Desk], tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        desk = open_desk(voices_dir=str(tmp_path / "file" / "voices"))

        response = await desk.upload(recording())

        assert response.status_code == 500
        assert "--voices-dir" in response.json()["error"]["message"]

    async def test_what_an_interrupted_upload_left_goes_away(self, desk: Desk) -> None:
        import os

        desk.folder.mkdir(parents=True)
        (desk.folder / ".upload-old").write_text("half")
        (desk.folder / ".upload-new").write_text("half")
        os.utime(desk.folder / ".upload-old", (1, 1))

        await desk.upload(recording())

        assert not (desk.folder / ".upload-old").exists()
        assert (desk.folder / ".upload-new").exists()
        assert (await desk.listed())["voices"] == ["Vivian", "Ryan", "Alice"]

    async def test_folder_and_files_are_the_users_alone(self, desk: Desk) -> None:
        await desk.upload(recording())

        assert desk.folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in desk.folder.iterdir()} == {0o600}


def prepared_engine(folder: Path, **traits: Any) -> FakeEngine:
    from types import SimpleNamespace

    engine = FakeEngine(traits=replace(CLONING, **traits))
    config = SimpleNamespace(model_type="acme_tts")
    engine.pipeline = SimpleNamespace(config=config, values={"custom_voice_dir": str(folder)})  # type: ignore[assignment]
    return engine


class TestPreparedVoices:
    """The operator's folder, `custom_voice_dir` (CV-01)."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        from safetensors.numpy import save_file

        folder = tmp_path / "prepared"
        folder.mkdir()
        save_file({"ref_audio": np.full(48000, 0.5, np.float32)}, folder / "carol.safetensors", {"sample_rate": "24000"})
        save_file({"ref_spk_embedding": np.arange(4, dtype=np.float32)[None]}, folder / "dave.safetensors")
        save_file({"weights": np.zeros(4, np.float32)}, folder / "other.safetensors")
        save_file({"speaker_embedding": np.zeros(4, np.float32)}, tmp_path / "outside.safetensors")
        entries = {
            "Carol": {"file": "carol.safetensors", "ref_text": "Words.", "mode": "icl"},
            "Dave": {"filename": "dave.safetensors", "mode": "x_vector"},
            "Other": {"file": "other.safetensors"},
            "Outside": {"file": "../outside.safetensors"},
            "Gone": {"file": "gone.safetensors"},
            "a/b": {"file": "carol.safetensors"},
            "Bad": 7,
        }
        manifest = {"model_type": "acme_tts", "schema_version": 1, "voices": entries}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    async def test_voices_of_the_manifest_are_listed_and_speak(
        self, folder: Path, make_client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = prepared_engine(folder)
        client = make_client(engine)

        listed = (await client.get("/v1/audio/voices")).json()
        await client.speak(voice="CAROL")
        await client.speak(voice="dave")

        assert listed == {"voices": ["Vivian", "Ryan", "Carol", "Dave"], "uploaded_voices": []}
        carol, dave = engine.prompts
        assert (carol.ref_text, dave.speaker_embedding) == ("Words.", (0.0, 1.0, 2.0, 3.0))
        assert carol.ref_audio is not None
        assert (carol.ref_audio.sample_rate, carol.ref_audio.samples.shape) == (24000, (48000,))
        left_out = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
        assert len(left_out) == 5
        for name in ("Other", "Outside", "Gone", "a/b", "Bad"):
            assert any(repr(name) in text for text in left_out)

    async def test_their_names_are_reserved(self, folder: Path, make_client: Any, tmp_path: Path) -> None:
        engine = prepared_engine(folder)
        desk = Desk(make_client(engine, voices_dir=str(tmp_path / "kept" / "voices")), engine, tmp_path / "kept" / "voices")

        assert "reserved" in await desk.refused("name", recording(), status=409, name="carol")

    @pytest.mark.parametrize(
        ("text", "mentions"),
        [
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ('{"model_type": "acme_tts", "schema_version": 2, "voices": {}}', "schema_version"),
            ('{"model_type": "another", "schema_version": 1, "voices": {}}', "is for 'another'"),
        ],
    )
    async def test_manifest_that_cannot_be_used_is_a_warning(
        self, text: str, mentions: str, folder: Path, make_client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "manifest.json").write_text(text)

        listed = (await make_client(prepared_engine(folder)).get("/v1/audio/voices")).json()

        assert listed["voices"] == ["Vivian", "Ryan"]
        assert [record for record in caplog.records if record.levelname == "WARNING" and mentions in record.getMessage()]

    async def test_uploaded_file_can_be_prepared_as_it_is(self, folder: Path, desk: Desk, make_client: Any) -> None:
        await desk.upload(recording(), ref_text="What I say.")
        (kept,) = desk.folder.iterdir()
        kept.rename(folder / "alice.safetensors")
        manifest = {"model_type": "acme_tts", "voices": {"Eve": {"file": "alice.safetensors"}}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        engine = prepared_engine(folder)

        assert (await make_client(engine).speak(voice="eve")).status_code == 200

        assert engine.prompts[0].ref_text == "What I say."
        assert engine.prompts[0].ref_audio is not None


def test_server_reads_no_folder_until_somebody_asks(make_plugins: Any, tmp_path: Path) -> None:
    folder = tmp_path / "none" / "voices"

    build_app(FakeEngine(), ServerSettings("org/fake-tts", voices_dir=str(folder)), plugins=make_plugins())

    assert not folder.exists()
