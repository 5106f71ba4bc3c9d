from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint


@pytest.fixture
def raw(data_folder: Path) -> dict[str, Any]:
    return json.loads((data_folder / "config.json").read_text())


def test_facts_come_from_config_json(data_folder: Path) -> None:
    checkpoint = Checkpoint.read(data_folder)

    assert checkpoint.task == "CustomVoice"
    assert (checkpoint.codec.pad, checkpoint.codec.bos, checkpoint.codec.eos) == (2148, 2149, 2150)
    assert (checkpoint.vocab_size, checkpoint.codebook_size, checkpoint.num_codes) == (3072, 2048, 16)
    assert checkpoint.voice_id("VIVIAN") == 3065


def test_dialects_are_no_languages_that_a_user_names(data_folder: Path) -> None:
    assert "beijing_dialect" not in Checkpoint.read(data_folder).spoken_languages


@pytest.mark.parametrize(
    ("language", "voice", "expected"),
    [
        ("Auto", None, None),
        ("english", "ryan", 2050),
        ("Chinese", "Dylan", 2074),
        ("auto", "eric", 2062),
        ("English", "dylan", 2050),
        ("chinese", "vivian", 2055),
    ],
)
def test_a_dialect_voice_replaces_chinese_and_auto(
    data_folder: Path, language: str, voice: str | None, expected: int | None
) -> None:
    assert Checkpoint.read(data_folder).language_id(language, voice) == expected


@pytest.mark.parametrize(
    ("variant", "size", "expected"),
    [("custom_voice", "1b7", True), ("custom_voice", "0b6", False), ("voice_design", "1b7", True), ("base", "1b7", False)],
)
def test_instructions_have_an_effect_for_some_models_only(raw: dict[str, Any], variant: str, size: str, expected: bool) -> None:
    checkpoint = Checkpoint.from_config({**raw, "tts_model_type": variant, "tts_model_size": size}, "m")

    assert checkpoint.takes_instructions is expected


def test_a_missing_field_is_an_error_that_names_it(raw: dict[str, Any]) -> None:
    del raw["talker_config"]["codec_eos_token_id"]

    with pytest.raises(ConfigError, match=r"talker_config\.codec_eos_token_id is missing"):
        Checkpoint.from_config(raw, "m")


@pytest.mark.parametrize("field", ["spk_id", "codec_language_id"])
def test_an_id_that_is_no_number_is_an_error_that_names_it(raw: dict[str, Any], field: str) -> None:
    name = next(iter(raw["talker_config"][field]))
    raw["talker_config"][field][name] = [1]

    with pytest.raises(ConfigError, match=rf"talker_config\.{field}\.{name} must be of type int, not \[1\]"):
        Checkpoint.from_config(raw, "m")


@pytest.mark.parametrize("dialect", ["shanghai_dialect", ["beijing_dialect"], True])
def test_a_dialect_that_is_no_language_is_an_error_that_names_it(raw: dict[str, Any], dialect: Any) -> None:
    raw["talker_config"]["spk_is_dialect"]["dylan"] = dialect

    with pytest.raises(ConfigError, match=r"talker_config\.spk_is_dialect names .*, which codec_language_id lacks") as error:
        Checkpoint.from_config(raw, "m")

    assert str(dialect).lower() in error.value.message


def test_dialects_are_matched_without_case(raw: dict[str, Any]) -> None:
    raw["talker_config"]["spk_is_dialect"]["dylan"] = "Beijing_Dialect"

    assert Checkpoint.from_config(raw, "m").language_id("auto", "dylan") == 2074


def test_voices_of_another_width_than_the_talkers_rows_are_an_error(raw: dict[str, Any]) -> None:
    assert Checkpoint.from_config({**raw, "speaker_encoder_config": {}}, "m").speaker_width == 48

    with pytest.raises(ConfigError, match="enc_dim is 64, but the talker's rows have 48 values"):
        Checkpoint.from_config({**raw, "speaker_encoder_config": {"enc_dim": 64}}, "m")


def test_an_unknown_variant_is_an_error_with_the_known_ones(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'opera' is not known.*custom_voice"):
        Checkpoint.from_config({**raw, "tts_model_type": "opera"}, "m")


def test_an_unreadable_config_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Checkpoint.read(tmp_path)

    assert caught.value.where == str(tmp_path / "config.json")
