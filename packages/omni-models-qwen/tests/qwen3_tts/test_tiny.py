from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from omni_models_qwen.qwen3_tts.tiny import VARIANTS, build_tiny

WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")
FILES = {
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "speech_tokenizer/preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
}


def layout(path: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(path, framework="np") as file:
        return {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("variants")
    for variant in VARIANTS:
        build_tiny(root / variant, variant, 0)
    return {variant: root / variant for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_files_are_those_of_a_real_checkpoint(variant: str, folders: dict[str, Path]) -> None:
    found = {str(path.relative_to(folders[variant])) for path in folders[variant].rglob("*") if path.is_file()}

    assert found == FILES


def test_tensors_and_settings_are_those_of_the_references(golden_folder: Path, folders: dict[str, Path]) -> None:
    folder = folders[read(golden_folder / "config.json")["tts_model_type"]]

    for name in WEIGHTS:
        assert layout(folder / name) == layout(golden_folder / name)
    for name in ("config.json", "generation_config.json", "speech_tokenizer/config.json"):
        ours, theirs = read(folder / name), read(golden_folder / name)
        ids = {key for key in theirs if key.endswith("token_id")}
        assert ours.keys() == theirs.keys()
        assert {key: ours[key] for key in ours.keys() - ids} == {key: theirs[key] for key in theirs.keys() - ids}


def test_only_custom_voice_has_voices_and_only_base_clones(folders: dict[str, Path]) -> None:
    configs = {variant: read(folder / "config.json") for variant, folder in folders.items()}

    assert {variant for variant, config in configs.items() if config["talker_config"]["spk_id"]} == {"custom_voice"}
    assert {variant for variant, config in configs.items() if "speaker_encoder_config" in config} == {"base"}
    assert configs["custom_voice"]["talker_config"]["spk_is_dialect"]["dylan"] == "beijing_dialect"


def test_ids_in_the_config_are_the_tokenizers(folders: dict[str, Path]) -> None:
    from tokenizers import Tokenizer

    folder = folders["custom_voice"]
    tokenizer, config = Tokenizer.from_file(str(folder / "tokenizer.json")), read(folder / "config.json")

    ids = tokenizer.encode("<|im_start|>assistant\nHello there, 你好<|im_end|>\n").ids

    assert ids[:2] == [config["im_start_token_id"], config["assistant_token_id"]]
    assert config["im_end_token_id"] in ids
    assert max(tokenizer.get_vocab().values()) < config["talker_config"]["text_vocab_size"]
    assert tokenizer.decode(ids) == "assistant\nHello there, 你好\n"


@pytest.mark.engine
@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("seed", range(4))
def test_audio_is_audible_and_seldom_clipped(seed: int, tmp_path: Path, decoder_of: Callable[..., Any]) -> None:
    import torch

    build_tiny(tmp_path, "voice_design", seed)
    decoder = decoder_of(tmp_path)
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2048, (1, 50, 16)))

    audio = decoder.decode(codes, [decoder.begin()])

    assert 0.04 < audio.pow(2).mean().sqrt() < 0.3
    assert (audio.abs() >= 1).float().mean() < 0.01
