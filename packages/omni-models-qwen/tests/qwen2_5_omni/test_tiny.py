"""Tiny checkpoints: the tensors of real ones, equal for equal seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.modelkit.weights import read_header
from omni_models_qwen.qwen2_5_omni.chat import VOICES_FILE
from omni_models_qwen.qwen2_5_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen2_5_omni.tiny import build_tiny
from omni_models_qwen.qwen2_5_omni.voices import Voices

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny(folder, "default", 3)
    return folder


def test_its_tensors_are_those_of_the_reference(tiny: Path, omni_folder: Path) -> None:
    ours, theirs = read_header(tiny / "model.safetensors"), read_header(omni_folder / "model.safetensors")
    vocabulary = {"thinker.lm_head.weight", "thinker.model.embed_tokens.weight"}

    assert set(ours) == set(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} <= vocabulary


def test_it_is_as_published_checkpoints_are(tiny: Path) -> None:
    facts, voices = Checkpoint.read(tiny), Voices.read(tiny)
    rows = read_header(tiny / "model.safetensors")["thinker.model.embed_tokens.weight"][0]

    assert facts.codec_opening
    assert voices.names == ("Chelsie", "Ethan")
    assert max(*voices.marks, facts.text_end, facts.text_pad) < rows
    assert len({*voices.marks, facts.text_end, facts.text_pad}) == 4


def test_equal_seeds_give_equal_files_and_others_do_not(tiny: Path, tmp_path: Path) -> None:
    build_tiny(tmp_path / "same", "default", 3)
    build_tiny(tmp_path / "other", "default", 4)

    for name in ("model.safetensors", VOICES_FILE, "config.json"):
        assert (tmp_path / "same" / name).read_bytes() == (tiny / name).read_bytes()
    for name in ("model.safetensors", VOICES_FILE):
        assert (tmp_path / "other" / name).read_bytes() != (tiny / name).read_bytes()
