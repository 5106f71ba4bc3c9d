"""`omni config explain`; the first test is the contract's worked override example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SEED_TABLE = [
    (0, "gpu_memory_utilization", "0.9", "base YAML", "fake.yaml:4:29", None),
    (0, "max_num_seqs", "8", "per-stage CLI", "--stage-overrides 0.max_num_seqs", ("32", "base YAML", "fake.yaml:5:19")),
    (0, "max_model_len", "16384", "global CLI", "--max-model-len", None),
    (1, "gpu_memory_utilization", "0.5", "overlay YAML", "my_overrides.yaml:4:29", ("0.7", "base YAML", "fake.yaml:7:29")),
    (1, "max_num_seqs", "16", "base YAML", "fake.yaml:8:19", None),
    (1, "max_model_len", "16384", "global CLI", "--max-model-len", None),
    (2, "max_model_len", "16384", "global CLI", "--max-model-len", None),
]
"""The seed's table of final values and sources; the flag reaches stage 2 as well, which owns the field (PR-04, PR-05)."""
COMMAND = (
    "explain",
    "MODEL",
    "--deploy-config",
    "my_overrides.yaml",
    "--max-model-len",
    "16384",
    "--stage-overrides",
    '{"0": {"max_num_seqs": 8}}',
)


@pytest.fixture
def overlay(config: Any, tmp_path: Path) -> None:
    text = "base_config: bundle/fake.yaml\nstages:\n  - stage_id: 1\n    gpu_memory_utilization: 0.5     # smaller GPU\n"
    (tmp_path / "my_overrides.yaml").write_text(text)


@pytest.mark.usefixtures("overlay")
@pytest.mark.parametrize("row", SEED_TABLE, ids=lambda row: f"stage {row[0]} {row[1]}")
def test_worked_override_example_of_the_contract_is_explained(row: Any, config: Any) -> None:
    stage, field, value, layer, place, loser = row

    result = config(*COMMAND, "--stage", str(stage), "--field", field)

    expected = [f"{field} {value} {layer} {place.replace('fake.yaml', 'bundle/fake.yaml')}"]
    if loser is not None:
        expected.append(f"wins over {loser[0]} {loser[1]} {loser[2].replace('fake.yaml', 'bundle/fake.yaml')}")
    assert result.code == 0
    assert result.rows[-len(expected) :] == expected
    assert sum(line.startswith((f"{field} ", "wins over")) for line in result.rows) == len(expected)


@pytest.mark.usefixtures("overlay")
def test_stage_2_of_the_worked_example_has_nothing_but_the_flag_and_defaults(config: Any) -> None:
    settings = config(*COMMAND, "--stage", "2", "--json").json["settings"]

    set_by_somebody = {item["field"] for item in settings if item["layer"] != "default"}
    assert set_by_somebody == {"max_model_len", "async_chunk"}


@pytest.mark.usefixtures("overlay")
def test_json_has_winner_and_losers_with_their_places(config: Any) -> None:
    result = config(*COMMAND, "--json").json

    (item,) = [item for item in result["settings"] if (item["stage"], item["field"]) == (0, "max_num_seqs")]
    assert (item["value"], item["layer"]) == (8, "stage override")
    assert item["losers"] == [{"value": 32, "layer": "base", "place": "bundle/fake.yaml:5:19"}]
    assert result["files"] == ["my_overrides.yaml", "bundle/fake.yaml"]
    assert len(result["config_hash"]) == 16


def test_value_that_a_platform_section_erases_is_shown_with_what_it_erased(config: Any, tmp_path: Path) -> None:
    text = "stages: [{stage_id: 0, devices: '3'}]\nplatforms: {cpu: {stages: [{stage_id: 0, devices: null}]}}\n"
    (tmp_path / "my.yaml").write_text(text)

    result = config("explain", "MODEL", "--deploy-config", "my.yaml", "--field", "devices", "--stage", "0", platform="cpu")

    assert "devices - platform section my.yaml:2:51" in result.rows
    assert "wins over 3 base YAML my.yaml:1:33" in result.rows


def test_edge_options_have_their_places(config: Any, tmp_path: Path) -> None:
    text = """connectors: {shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}}
stages: [{stage_id: 0, output_connectors: {to_stage_1: shm}}]
"""
    (tmp_path / "my.yaml").write_text(text)

    result = config("explain", "MODEL", "--deploy-config", "my.yaml", "--field", "codec_chunk_frames")

    assert "to_stage_1.codec_chunk_frames 25 base YAML my.yaml:1:77" in result.rows


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--stage", "7"], "there is no stage 7", "0 (thinker), 1 (talker), 2 (vocoder)"),
        (["--field", "max_num_seq"], "nothing sets 'max_num_seq' here", "did you mean 'max_num_seqs'?"),
    ],
    ids=["stage", "field"],
)
def test_filter_that_finds_nothing_is_an_error(config: Any, options: list[str], message: str, hint: str) -> None:
    result = config("explain", "MODEL", *options)

    assert result.code == 2
    assert message in result.err
    assert hint in result.err


GOLDEN = """
pipeline
async_chunk true base YAML bundle/fake.yaml:1:14
wins over true default
session_mode turn default

stage 0 (thinker), LLM_AR, Fake
model_runner v1 default
async_chunk true base YAML bundle/fake.yaml:1:14
wins over true default
devices - default
num_replicas 1 default
gpu_memory_utilization 0.9 base YAML bundle/fake.yaml:4:29
max_num_seqs 8 per-stage CLI --stage-overrides 0.max_num_seqs
wins over 32 base YAML bundle/fake.yaml:5:19
max_model_len 16384 global CLI --max-model-len
sampling.detokenize true pipeline stage 0 (thinker)
to_stage_1.connector SharedMemoryConnector default

stage 1 (talker), LLM_AR, Fake
model_runner v1 default
async_chunk true base YAML bundle/fake.yaml:1:14
wins over true default
devices - default
num_replicas 1 default
gpu_memory_utilization 0.5 overlay YAML my_overrides.yaml:4:29
wins over 0.7 base YAML bundle/fake.yaml:7:29
max_num_seqs 16 base YAML bundle/fake.yaml:8:19
max_model_len 16384 global CLI --max-model-len
to_stage_2.connector SharedMemoryConnector default

stage 2 (vocoder), LLM_GENERATION, Fake
model_runner v1 default
async_chunk true base YAML bundle/fake.yaml:1:14
wins over true default
devices - default
num_replicas 1 default
max_model_len 16384 global CLI --max-model-len
"""


@pytest.mark.usefixtures("overlay")
def test_whole_page_of_the_worked_example(config: Any) -> None:
    result = config(*COMMAND)

    assert result.rows[:2] == [
        f"pipeline fake on cuda, config hash {config('show', *COMMAND[1:], '--json').json['config_hash']}",
        "files my_overrides.yaml, bundle/fake.yaml",
    ]
    assert result.rows[2:] == GOLDEN.rstrip().splitlines()
