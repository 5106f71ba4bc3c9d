from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from omni_core.errors import ConfigError
from omni_models_moss.local.tiny import build_tiny

FILES = {
    "audio_tokenizer/config.json",
    "audio_tokenizer/model.safetensors",
    "config.json",
    "merges.txt",
    "model.safetensors",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
}


def layout(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Return the tensors of a file; the vocabulary's size depends on the tokenizer."""
    with safe_open(path, framework="np") as file:
        found = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return {name: shape for name, shape in found.items() if "embed_tokens" not in name}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    build_tiny(root / "moss", "default", 0)
    return root / "moss"


def test_the_files_are_those_of_a_real_checkpoint(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES


def test_tensors_and_settings_are_those_of_the_reference(golden_folder: Path, folder: Path) -> None:
    assert layout(folder / "model.safetensors") == layout(golden_folder / "model.safetensors")
    ours, theirs = read(folder / "config.json"), read(golden_folder / "config.json")
    assert ours.keys() == theirs.keys()
    for name in ("qwen3_config", "language_config", "gpt2_config"):
        assert ours[name].keys() == theirs[name].keys()
        assert {**ours[name], "vocab_size": 0} == {**theirs[name], "vocab_size": 0}


def test_equal_seeds_give_equal_files(folder: Path, tmp_path: Path) -> None:
    build_tiny(tmp_path / "same", "default", 0)
    build_tiny(tmp_path / "other", "default", 1)

    for name in FILES:
        assert (tmp_path / "same" / name).read_bytes() == (folder / name).read_bytes()
    for name in ("model.safetensors", "audio_tokenizer/model.safetensors"):
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_ids_in_the_config_are_the_tokenizers_and_not_the_released_ones(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer, config = Tokenizer.from_file(str(folder / "tokenizer.json")), read(folder / "config.json")

    assert tokenizer.token_to_id("<|audio_end|>") == config["audio_end_token_id"]
    assert tokenizer.token_to_id("<|video_pad|>") == config["audio_assistant_slot_token_id"]
    assert max(tokenizer.get_vocab().values()) < config["qwen3_config"]["vocab_size"] < 151643


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tiny MOSS-TTS Local variant 'huge'"):
        build_tiny(tmp_path / "x", "huge", 0)

    assert not (tmp_path / "x").exists()


def test_building_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from omni_models_moss.local.tiny import build_tiny; "
        f"build_tiny(pathlib.Path({str(tmp_path)!r}), 'default', 0); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
