import json
from pathlib import Path
from typing import Any

import pytest

from omni_core import cli
from omni_core.connector import ConnectorEntry
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.testing.plugins import make_manager, make_plugin

FAKES = "omni_core.testing.fakes"
PIPELINE = PipelineConfig(
    model_type="fake",
    model_arch="Fake",
    stages=(
        StagePipelineConfig(stage_id=0, model_stage="talker", async_chunk_process_next_stage_input_func=f"{FAKES}:chunk_codes"),
        StagePipelineConfig(
            stage_id=1,
            model_stage="vocoder",
            execution_type=ExecutionType.LLM_GENERATION,
            input_sources=(0,),
            final_output=True,
        ),
    ),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    plugin = make_plugin(
        omni_pipelines=[PIPELINE],
        omni_architectures={"Fake": f"{FAKES}:SumVocoder"},
        omni_connectors=[ConnectorEntry("SharedMemoryConnector", f"{FAKES}:FolderConnector")],
    )
    monkeypatch.setattr("omni_core.deploy.resolve.plugin_manager", lambda: make_manager({"acme": plugin}))
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "fake"}')
    (tmp_path / "my.yaml").write_text("stages: [{stage_id: 0, max_num_seqs: 4, default_sampling_params: {top_k: 5}}]")
    return str(tmp_path)


def show(model: str, *options: str) -> int:
    return cli.main(["config", "show", model, "--deploy-config", "my.yaml", "--platform", "cpu", *options])


def test_text_shows_each_value(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(model) == 0

    text = capsys.readouterr().out
    assert "pipeline fake on cpu" in text
    assert "stage 0 (talker), LLM_AR, Fake" in text
    assert "-> stage 1 through SharedMemoryConnector, chunks" in text


def test_explain_says_where_each_value_comes_from(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(model, "--explain", "--max-model-len", "16", "--stage-overrides", '{"1": {"max_num_seqs": 2}}') == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["max_num_seqs", "4", "base", "my.yaml:1:38"] in rows
    assert ["max_model_len", "16", "flag", "--max-model-len"] in rows
    assert ["max_num_seqs", "2", "stage", "override", "--stage-overrides", "1.max_num_seqs"] in rows
    assert ["sampling.top_k", "5", "base", "my.yaml:1:74"] in rows
    assert ["async_chunk", "true", "default"] in rows


def test_json_has_the_same_with_sources_on_request(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(model, "--json", "--explain") == 0

    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["files"] == ["my.yaml"]
    assert found["stages"][0]["engine_args"] == {"max_num_seqs": 4}
    assert found["stages"][0]["sources"]["max_num_seqs"] == {"layer": "base", "place": "my.yaml:1:38"}
    assert found["stages"][1]["inputs"][0]["connector"] == "SharedMemoryConnector"

    assert show(model, "--json") == 0
    assert "sources" not in json.loads(capsys.readouterr().out)


def test_wrong_value_ends_with_its_place_and_2(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yaml").write_text("stages:\n  - stage_id: 0\n    gpu_memory_utilization: lots\n")

    assert show(model) == 2

    assert capsys.readouterr().err.startswith("error: my.yaml:3:29: stages.0.gpu_memory_utilization: ")


@pytest.mark.usefixtures("model")
def test_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "schema"]) == 0

    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["async_chunk"]["description"].startswith("Hand on chunks")


def test_action_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["config"])
    assert caught.value.code == 2
    assert "ACTION" in capsys.readouterr().err
