from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from omni_core.model_info import ModelInfo
from omni_core.runner import LightChunk
from omni_models_qwen.plugin import omni_resolve_pipeline
from omni_models_qwen.qwen3_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen3_omni.tiny import VARIANTS, build_tiny

FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
}


def layout(folder: Path, rows: int) -> dict[str, tuple[str, list[int]]]:
    """Return dtypes and shapes; `rows`, the size of the vocabulary, reads as -1."""
    with safe_open(folder / "model.safetensors", framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return {
            name: (part.get_dtype(), [-1 if "thinker" in name and size == rows else size for size in part.get_shape()])
            for name, part in slices.items()
        }


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def vocabulary(folder: Path) -> int:
    size: int = read(folder / "config.json")["thinker_config"]["text_config"]["vocab_size"]
    return size


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("variants")
    for variant in VARIANTS:
        build_tiny(root / variant, variant, 0)
    return {variant: root / variant for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_files_are_those_of_a_real_checkpoint(variant: str, folders: dict[str, Path]) -> None:
    assert {path.name for path in folders[variant].iterdir()} == FILES


def test_tensors_are_those_of_the_references_checkpoint(omni_folder: Path, folders: dict[str, Path]) -> None:
    ours = layout(folders["instruct"], vocabulary(folders["instruct"]))
    theirs = layout(omni_folder, vocabulary(omni_folder))

    assert ours == theirs
    silent = layout(folders["thinking"], vocabulary(folders["thinking"]))
    assert silent == {name: spec for name, spec in theirs.items() if name.startswith("thinker.")}


def test_the_talker_finds_what_it_needs(folders: dict[str, Path]) -> None:
    from tokenizers import Tokenizer

    found = Checkpoint.read(folders["instruct"])

    ids = Tokenizer.from_file(str(folders["instruct"] / "tokenizer.json")).encode("<|im_start|>user\n<|image_pad|>").ids
    assert ids == [found.text.im_start, found.text.user, ids[2], found.text.image]
    assert sorted(found.voices) == ["aiden", "chelsie", "ethan"]


def test_only_the_variant_with_a_talker_speaks(folders: dict[str, Path]) -> None:
    kinds = [
        omni_resolve_pipeline(ModelInfo(str(folder), folder, read(folder / "config.json")))
        for folder in (folders["instruct"], folders["thinking"])
    ]

    assert kinds == [None, "qwen3_omni_moe_thinker_only"]


@pytest.mark.engine  # jinja2 is in the environment of the engine tests
def test_conversations_are_rendered_as_the_published_template_does(folders: dict[str, Path]) -> None:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folders["instruct"] / "chat_template.jinja").read_text())
    parts = [{"type": "audio"}, {"type": "text", "text": " What is it?"}, {"type": "image"}]

    text = template.render(
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}], add_generation_prompt=True
    )

    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|> What is it?"
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.engine
@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("seed", range(3))
def test_audio_is_audible_and_not_clipped(seed: int, tmp_path: Path, omni_stage: Callable[..., Any]) -> None:
    from omni_models_qwen.qwen3_omni.code2wav import Qwen3OmniCode2Wav

    build_tiny(tmp_path, "instruct", seed)
    model = Qwen3OmniCode2Wav.load(omni_stage(tmp_path, 2))
    codes = np.random.default_rng(seed).integers(0, 2048, (50, 16))

    audio = model.step([LightChunk("r", model.begin("r", {}), {"codes": codes}, True)])[0]["audio"]

    assert 0.02 < np.sqrt((audio**2).mean()) < 0.3
    assert np.abs(audio).max() < 1
