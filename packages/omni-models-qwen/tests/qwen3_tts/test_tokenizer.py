from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.modelkit.tokenizer import TextTokenizer
from omni_models_qwen.qwen3_tts.prompt import assistant_text, instruction_text, reference_text

PARTS = ("vocab.json", "merges.txt", "tokenizer_config.json")


def _without_tokenizer_json(folder: Path, target: Path) -> Path:
    for name in PARTS:
        shutil.copy(folder / name, target / name)
    return target


@pytest.mark.parametrize("layout", ["tokenizer.json", "parts"])
def test_ids_equal_the_reference(case: Any, layout: str, tmp_path: Path) -> None:
    folder = case.folder if layout == "tokenizer.json" else _without_tokenizer_json(case.folder, tmp_path)
    tokenizer = TextTokenizer.load(folder)
    record, request = case.record, case.request

    assert tokenizer.encode(assistant_text(request["text"])) == record["prompt_token_ids"]
    if record.get("instruct_token_ids"):
        assert tokenizer.encode(instruction_text(request["instruct"])) == record["instruct_token_ids"]
    if record.get("ref_text_token_ids"):
        assert tokenizer.encode(reference_text(request["ref_text"])) == record["ref_text_token_ids"]


def test_missing_files_are_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the tokenizer") as caught:
        TextTokenizer.load(tmp_path)

    assert caught.value.where == str(tmp_path)


def test_a_vocabulary_of_another_checkpoint_is_an_error(data_folder: Path, tmp_path: Path) -> None:
    folder = _without_tokenizer_json(data_folder, tmp_path)
    config = (folder / "tokenizer_config.json").read_text()
    assert '"300"' in config
    (folder / "tokenizer_config.json").write_text(config.replace('"300"', '"1300"'))

    with pytest.raises(ConfigError, match="belongs to another checkpoint"):
        TextTokenizer.load(folder)
