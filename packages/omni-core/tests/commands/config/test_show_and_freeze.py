"""`omni config show` and `freeze`: deploy files that say everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

OVERLAY = """base_config: bundle/fake.yaml
connectors:
  shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}
  unused: {name: SharedMemoryConnector}
stages:
  - stage_id: 0
    env: {HOME_OF_MODELS: "${HOME}/models", MY_TOKEN: abc}
    output_connectors: {to_stage_1: shm}
    default_sampling_params: {stop: ["1e3", "yes", "$${x}"], temperature: 1e-3}
  - {stage_id: 1, devices: "0,1", tensor_parallel_size: 2}
platforms:
  cuda: {stages: [{stage_id: 1, gpu_memory_utilization: 0.4}]}
"""


@pytest.fixture
def flags(config: Any, tmp_path: Path) -> list[str]:
    (tmp_path / "my.yaml").write_text(OVERLAY)
    return [
        "MODEL",
        "--deploy-config",
        "my.yaml",
        "--max-model-len",
        "16384",
        "--stage-overrides",
        '{"0": {"max_num_seqs": 8}}',
    ]


def test_show_writes_a_flat_deploy_file(config: Any, flags: list[str]) -> None:
    result = config("show", *flags)

    document = yaml.safe_load(result.out)
    assert result.code == 0
    assert "base_config" not in document
    assert "platforms" not in document
    assert document["pipeline"] == "fake"
    assert list(document["connectors"]) == ["shm"]
    assert document["stages"][0]["max_num_seqs"] == 8
    assert document["stages"][0]["default_sampling_params"]["stop"] == ["1e3", "yes", "$${x}"]
    assert document["stages"][1]["gpu_memory_utilization"] == 0.4
    assert document["stages"][2]["max_model_len"] == 16384


def test_json_has_what_no_deploy_file_says(config: Any, flags: list[str]) -> None:
    found = config("show", *flags, "--json").json

    assert found["files"] == ["my.yaml", "bundle/fake.yaml"]
    assert found["stages"][0]["architecture"] == "Fake"
    assert found["stages"][1]["inputs"][0]["stream"] == {"codec_chunk_frames": 25}
    assert f"# config hash {found['config_hash']}" in config("show", *flags).out.splitlines()


def test_frozen_file_resolves_to_the_same_hash(config: Any, flags: list[str], tmp_path: Path) -> None:
    wanted = config("show", *flags, "--json").json["config_hash"]

    result = config("freeze", *flags, "-o", "frozen.yaml")

    assert result.out == f"wrote frozen.yaml, config hash {wanted}\n"
    assert config("show", "MODEL", "--deploy-config", "frozen.yaml", "--json").json["config_hash"] == wanted
    assert config("diff", "MODEL", "--against", "frozen.yaml", *flags[1:]).code == 0


def test_secrets_in_a_frozen_file_are_named(config: Any, flags: list[str], caplog: pytest.LogCaptureFixture) -> None:
    result = config("freeze", *flags)

    assert "MY_TOKEN: abc" in result.out
    assert "stage 0 (thinker): the file has the value of env.MY_TOKEN; write ${MY_TOKEN} there instead" in caplog.messages
    assert "HOME_OF_MODELS" not in caplog.text


def test_file_that_cannot_be_written_is_an_error(config: Any) -> None:
    result = config("freeze", "MODEL", "-o", "no/such/folder.yaml")

    assert result.code == 2
    assert "no/such/folder.yaml cannot be written" in result.err


def test_wrong_value_ends_with_its_place_and_2(config: Any, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("stages:\n  - stage_id: 0\n    gpu_memory_utilization: lots\n")

    result = config("show", "MODEL", "--deploy-config", "my.yaml")

    assert result.code == 2
    assert result.err.startswith("error: my.yaml:3:29: stages.0.gpu_memory_utilization: ")


def test_action_is_required(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        config(platform=None)

    assert caught.value.code == 2
    assert "ACTION" in capsys.readouterr().err
