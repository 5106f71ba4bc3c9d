"""The folder of uploaded voices: whole files or none, and one winner."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ServiceError
from omni_core.speech import ReferenceAudio
from omni_server.voice_file import VoiceFacts, VoiceFileError
from omni_server.voice_store import VoiceConflictError, VoiceNotFoundError, VoiceStore

AUDIO = ReferenceAudio(np.linspace(-0.5, 0.5, 24000, dtype=np.float32), 24000)


def facts(name: str = "Alice", **more: Any) -> VoiceFacts:
    values = {"consent": "signed", "created_at": 1, "file_size": 2, "mime_type": "audio/wav", "sample_rate": 24000} | more
    return VoiceFacts(name=name, **values)


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices", 100)


def test_voice_comes_back_sample_for_sample(store: VoiceStore) -> None:
    store.add(facts(ref_text="Words."), AUDIO, None)

    found = store.find("alice")

    assert found is not None
    assert (found.name, found.ref_text) == ("Alice", "Words.")
    assert found.audio is not None
    np.testing.assert_array_equal(found.audio.samples, AUDIO.samples)
    assert store.all() == [facts(ref_text="Words.")]


def test_write_that_fails_leaves_nothing(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(ServiceError, match="No space left"):
        store.add(facts(), AUDIO, None)

    assert list(store.folder.iterdir()) == []


def test_of_many_stores_on_one_folder_one_wins(tmp_path: Path) -> None:
    """Servers that share a folder do not know of each other."""
    stores = [VoiceStore(tmp_path / "voices", 100) for _ in range(8)]
    start = threading.Barrier(len(stores))
    won: list[int] = []

    def add(number: int) -> None:
        start.wait(10)
        try:
            stores[number].add(facts(consent=str(number)), AUDIO, None)
        except VoiceConflictError:
            return
        won.append(number)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(won) == 1
    assert [found.consent for found in stores[0].all()] == [str(won[0])]
    assert len(list(stores[0].folder.iterdir())) == 1


def test_file_of_another_version_is_no_voice(store: VoiceStore) -> None:
    store.add(facts(schema_version=2), AUDIO, None)

    assert store.all() == []
    with pytest.raises(VoiceFileError, match="version 2"):
        store.find("alice")


def test_nothing_is_not_found(store: VoiceStore) -> None:
    assert (store.all(), store.find("alice"), store.stamp("alice")) == ([], None, None)
    with pytest.raises(VoiceNotFoundError) as caught:
        store.remove("alice")
    assert caught.value.param == "name"
