"""The voices of a checkpoint, and what is no file of voices."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError

pytest.importorskip("torch", reason="the file is torch's")

import torch

from omni_models_qwen.qwen2_5_omni.chat import VOICES_FILE
from omni_models_qwen.qwen2_5_omni.voices import Voices

pytestmark = pytest.mark.engine


class Harm:
    """Whatever unpickles it runs a command."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_voices_have_a_mark_a_vector_and_a_recording(omni_folder: Path) -> None:
    voices = Voices.read(omni_folder)
    voice = voices.find("ETHAN")

    assert voices.names == ("Chelsie", "Ethan")
    assert voices.marks == (316, 317)
    assert voice is not None
    assert (voice.name, voice.mark) == ("Ethan", 317)
    assert voice.conditioning.shape == (1, 192)
    assert voice.reference_mel.shape == (1, 60, 80)


def test_without_a_name_the_references_voice_speaks_or_the_first(tmp_path: Path) -> None:
    part = {"cond": torch.zeros(1, 4), "ref_mel": torch.zeros(1, 3, 2)}
    torch.save({"b": {"bos_token": 2, **part}, "Chelsie": {"bos_token": 3, **part}}, tmp_path / VOICES_FILE)
    chosen = Voices.read(tmp_path).find(None)
    torch.save({"b": {"bos_token": 2, **part}, "a": {"bos_token": 1, **part}}, tmp_path / VOICES_FILE)
    first = Voices.read(tmp_path).find(None)

    assert chosen is not None
    assert chosen.name == "Chelsie"
    assert first is not None
    assert first.name == "b"
    assert Voices.read(tmp_path).find("nobody") is None


@pytest.mark.parametrize(
    "content",
    [
        b"no file of torch's",
        pickle.dumps(Harm(), protocol=2),
        b"\x80\x02.",
        {},
        [1],
        {"a": {"bos_token": 1}},
        {"a": {"bos_token": 1, "cond": torch.zeros(4), "ref_mel": torch.zeros(1, 3, 2)}},
        {"a": 3},
        None,
    ],
    ids=["text", "code", "an empty pickle", "nothing", "a list", "no vector", "a flat vector", "a number", "no file"],
)
def test_what_holds_no_voices_is_refused(tmp_path: Path, content: Any) -> None:
    if isinstance(content, bytes):
        (tmp_path / VOICES_FILE).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / VOICES_FILE)

    with pytest.raises(ConfigError, match=VOICES_FILE.replace(".", r"\.")):
        Voices.read(tmp_path)
