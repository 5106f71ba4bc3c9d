import json
from pathlib import Path
from typing import Any

import pytest

from omni_core import cli
from omni_core.commands import pipelines as pipelines_module
from omni_core.commands import tiny as tiny_module
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.testing.plugins import make_manager, make_plugin
from omni_core.tiny import TinyModelEntry

STAGES = (
    StagePipelineConfig(stage_id=0, model_stage="talker"),
    StagePipelineConfig(stage_id=1, model_stage="vocoder", input_sources=(0,), final_output=True, final_output_type="audio"),
)
PIPELINE = PipelineConfig(model_type="fake", hf_architectures=("Fake",), stages=STAGES, default_deploy_config_name="fake.yaml")
TINY = TinyModelEntry("fake", "a fake", "omni_core.tiny:build_fake", variants=("base", "large"))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path, variant: str, seed: int) -> None:
        (folder / "config.json").write_text(json.dumps({"variant": variant, "seed": seed}))
        if variant == "large":
            raise ConfigError("too large")

    monkeypatch.setattr("omni_core.tiny.build_fake", build, raising=False)
    manager = make_manager({"acme": make_plugin(omni_tiny_models=[TINY])})
    monkeypatch.setattr(tiny_module, "plugin_manager", lambda: manager)


def use_pipelines(monkeypatch: pytest.MonkeyPatch, *configs: PipelineConfig) -> None:
    manager = make_manager({"acme": make_plugin(omni_pipelines=list(configs))})
    monkeypatch.setattr(pipelines_module, "plugin_manager", lambda: manager)


def test_pipelines_are_listed_with_their_stages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use_pipelines(monkeypatch, PIPELINE)

    assert cli.main(["pipelines"]) == 0
    assert capsys.readouterr().out == "fake  acme  talker -> vocoder  fake.yaml\n"

    assert cli.main(["pipelines", "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["pipeline"], facts["distribution"], facts["architectures"]) == ("fake", "acme", ["Fake"])
    assert facts["stages"][1] == {
        "stage_id": 1,
        "name": "vocoder",
        "type": "LLM_AR",
        "input_sources": [0],
        "output": "audio",
    }


def test_no_pipeline_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use_pipelines(monkeypatch)

    assert cli.main(["pipelines"]) == 0
    assert "pip install" in capsys.readouterr().out


@pytest.mark.usefixtures("_tiny")
def test_tiny_checkpoint_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "model"

    assert cli.main(["tiny", "fake", str(folder), "--seed", "7"]) == 0

    assert json.loads((folder / "config.json").read_text()) == {"variant": "base", "seed": 7}
    assert str(folder) in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.usefixtures("_tiny")
def test_empty_folder_is_taken_and_a_full_one_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()

    assert cli.main(["tiny", "fake", str(tmp_path / "empty")]) == 0
    assert cli.main(["tiny", "fake", str(tmp_path / "full")]) == 2

    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]


@pytest.mark.usefixtures("_tiny")
def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    assert cli.main(["tiny", "fake", str(tmp_path / "model"), "--variant", "large"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize(
    ("options", "hint"), [(["fakes", "d"], "did you mean 'fake'?"), (["fake", "d", "--variant", "bas"], "did you mean 'base'?")]
)
def test_unknown_name_or_variant_gets_a_suggestion(capsys: pytest.CaptureFixture[str], options: list[str], hint: str) -> None:
    assert cli.main(["tiny", *options]) == 2
    assert hint in capsys.readouterr().err


def test_env_lists_variables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMNI_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OMNI_NO_SUCH_THING", "1")

    assert cli.main(["env", "--json"]) == 0

    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    values = {variable["name"]: variable["value"] for variable in found["variables"]}
    assert values["OMNI_LOG_LEVEL"] == "DEBUG"
    assert "OMNI_WATCH_PIDS" not in values
    assert found["honoured"]["HF_TOKEN"] == "(set, hidden)"
    assert "OMNI_NO_SUCH_THING" in found["unknown"]

    assert cli.main(["env"]) == 0
    text = capsys.readouterr().out
    assert "hf_secret" not in text
    assert "OMNI_NO_SUCH_THING is set, but nothing reads it." in text
