"""`omni config diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def files(config: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base_config: bundle/fake.yaml\nstages: [{stage_id: 1, max_num_seqs: 8, devices: '1'}]")
    (tmp_path / "b.yaml").write_text("base_config: bundle/fake.yaml\nstages: [{stage_id: 1, max_num_seqs: 4}]")
    (tmp_path / "c.yaml").write_text("stages: [{stage_id: 1, max_num_seqs: 4}]\nbase_config: bundle/fake.yaml")


def test_differences_have_both_values_and_places(config: Any) -> None:
    result = config("diff", "a.yaml", "b.yaml")

    assert result.code == 1
    assert result.rows[2:] == [
        "- stage 1 devices 1 overlay YAML a.yaml:2:50",
        "+ stage 1 devices - default",
        "- stage 1 max_num_seqs 8 overlay YAML a.yaml:2:38",
        "+ stage 1 max_num_seqs 4 overlay YAML b.yaml:2:38",
    ]


def test_equal_deployments_are_0_wherever_their_values_come_from(config: Any) -> None:
    result = config("diff", "b.yaml", "c.yaml", "--json")

    assert result.code == 0
    assert result.json["differences"] == []
    assert result.json["left"]["config_hash"] == result.json["right"]["config_hash"]


def test_bundled_names_and_a_model_can_be_named(config: Any) -> None:
    found = config("diff", "fake", "b.yaml", "--model", "MODEL", "--json").json["differences"]

    assert [(item["stage"], item["field"]) for item in found] == [(1, "max_num_seqs")]
    assert found[0]["right"] == {"value": 4, "layer": "overlay", "place": "b.yaml:2:38"}


def test_flags_are_compared_with_a_file(config: Any) -> None:
    result = config("diff", "MODEL", "--against", "fake.yaml", "--max-model-len", "16")

    assert result.code == 1
    assert [line for line in result.rows if "max_model_len" in line] == [
        line
        for stage in range(3)
        for line in (f"- stage {stage} max_model_len - not set", f"+ stage {stage} max_model_len 16 global CLI --max-model-len")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.yaml"], "two deploy files are compared, not 1"),
        (["a.yaml", "b.yaml", "--max-num-seqs", "4"], "--max-num-seqs goes with --against"),
        (["a.yaml", "b.yaml", "--against", "c.yaml"], "--against compares with one model"),
    ],
    ids=["one file", "flags", "three"],
)
def test_unclear_comparison_is_refused(config: Any, arguments: list[str], message: str) -> None:
    result = config("diff", *arguments)

    assert result.code == 2
    assert message in result.err
