from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_core.stage import ResolvedStage
from omni_models_moss.codec.location import NAME, find_codec

pytestmark = pytest.mark.engine

StageOf = Callable[..., ResolvedStage]


def talker(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "moss_tts_local", **fields}), encoding="utf-8")
    return folder


def codec(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantizer_kwargs": {}}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("stage_id", [0, 1])
def test_a_codec_inside_the_checkpoint_is_found(stage_id: int, tmp_path: Path, stage_of: StageOf) -> None:
    folder = talker(tmp_path / "talker", **{NAME: "org/never-asked-for"})
    expected = codec(folder / "audio_tokenizer")

    assert find_codec(stage_of(folder, stage_id)) == expected


def test_a_stages_own_model_is_the_codec(tmp_path: Path, stage_of: StageOf) -> None:
    folder = codec(tmp_path / "codec")

    assert find_codec(stage_of(folder)) == folder


@pytest.mark.parametrize("name", ["path", "beside"])
def test_the_talkers_config_names_the_codec(name: str, tmp_path: Path, stage_of: StageOf) -> None:
    folder = codec(tmp_path / "talker" / "codec" if name == "beside" else tmp_path / "codec")
    talker(tmp_path / "talker", **{NAME: "codec" if name == "beside" else str(folder)})

    assert find_codec(stage_of(tmp_path / "talker")) == folder


def test_a_repository_is_fetched(tmp_path: Path, stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = codec(tmp_path / "fetched")
    asked = []

    def fetch(name: str, revision: object, weights: bool) -> Path:
        asked.append((name, weights))
        return fetched

    monkeypatch.setattr("omni_core.model_info._fetch", fetch)
    folder = talker(tmp_path / "talker", **{NAME: "OpenMOSS-Team/MOSS-Audio-Tokenizer-v2"})

    assert find_codec(stage_of(folder)) == fetched
    assert asked == [("OpenMOSS-Team/MOSS-Audio-Tokenizer-v2", True)]


def test_an_override_of_the_stage_beats_all(tmp_path: Path, stage_of: StageOf) -> None:
    folder = talker(tmp_path / "talker")
    codec(folder / "audio_tokenizer")
    other = codec(tmp_path / "other")

    assert find_codec(stage_of(folder, 0, engine_args={"hf_overrides": {NAME: str(other)}})) == other


def _nowhere(name: str, *, weights: bool) -> None:
    raise DependencyError(f"cannot fetch {name!r}")


def test_a_checkpoint_without_a_codec_says_how_to_name_one(
    tmp_path: Path, stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_models_moss.codec.location.read_model_info", _nowhere)
    folder = talker(tmp_path / "talker")

    with pytest.raises(ConfigError, match="the checkpoint has no codec") as error:
        find_codec(stage_of(folder, 1))

    assert error.value.where == "stage 1 (moss_tts_local_codec)"
    assert NAME in str(error.value.hint)
