"""Files of conversations that cannot be decoded: whose fault that is, and what the error says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the connector is vLLM's")

from omni_core.engine.ar import media
from omni_core.errors import RequestError, UnsupportedError

pytestmark = pytest.mark.engine
PLACE = "messages[0].content[0].video_url"


def read(error: Exception, *, sound: bool = False, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what reading a video gives whose decoder raises an error."""

    def fails(data: bytes) -> Any:
        raise error

    decoder = SimpleNamespace(load_bytes=fails)
    monkeypatch.setattr("vllm.multimodal.media.connector.AudioMediaIO", lambda **_: decoder)
    connector = media.OmniMediaConnector()
    message = {"role": "user", "content": [{"type": "video_url", "video_url": {"url": PLACE}}]}
    with media.MediaTable().lent([message], {PLACE: b"mp4"}) as (lent,):
        url = lent["content"][0]["video_url"]["url"]
        work = connector.fetch_audio_async(url) if sound else connector.load_from_url_async(url, decoder)
        return asyncio.run(work)


@pytest.mark.parametrize("sound", [False, True])
def test_a_missing_decoder_is_not_the_requests_fault(sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="No module named 'cv2'") as refused:
        read(ImportError("No module named 'cv2'"), sound=sound, monkeypatch=monkeypatch)

    assert refused.value.param == PLACE
    assert refused.value.http_status == 501
    assert "omni doctor" in refused.value.hint


def test_a_video_that_no_frames_can_be_chosen_of_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="too few frames") as refused:
        read(ZeroDivisionError("division by zero"), monkeypatch=monkeypatch)

    assert refused.value.param == PLACE


def test_a_video_without_the_sound_that_was_asked_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="has no sound that can be read: No audio stream found") as refused:
        read(ValueError("No audio stream found."), sound=True, monkeypatch=monkeypatch)

    assert refused.value.param == PLACE
    assert "use_audio_in_video" in refused.value.hint
