"""The hash of a configuration."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage, Source

TOPOLOGY = StagePipelineConfig(stage_id=0, model_stage="talker", final_output=True)


def deployment(**fields: Any) -> ResolvedPipeline:
    values: dict[str, Any] = {"engine_args": {"max_num_seqs": 4, "compilation_config": {"mode": 3}}, **fields}
    stage = ResolvedStage("one", TOPOLOGY, "/models/one", "FakeModel", None, "a:b", **values)
    return ResolvedPipeline(
        PipelineConfig(model_type="one", stages=(TOPOLOGY,)),
        "/models/one",
        (stage,),
        True,
        "cpu",
        values={"session_mode": "turn"},
    )


def test_hash_is_sixteen_hexadecimal_digits() -> None:
    found = deployment().config_hash

    assert len(found) == 16
    assert int(found, 16) >= 0


def test_order_of_keys_and_spelling_of_whole_numbers_do_not_matter() -> None:
    ordered = deployment(engine_args={"compilation_config": {"mode": 3.0}, "max_num_seqs": 4})

    assert ordered.config_hash == deployment().config_hash


def test_places_and_folders_do_not_matter() -> None:
    one = deployment()
    moved = replace(
        deployment(sources={"max_num_seqs": Source("flag", "--max-num-seqs", 4)}, losers={"max_num_seqs": (Source("base"),)}),
        model="/elsewhere",
        files=("a.yaml",),
        warnings=("x",),
    )

    assert moved.config_hash == one.config_hash


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_args": {"max_num_seqs": 5}},
        {"sampling": {"top_k": 5}},
        {"devices": "1"},
        {"num_replicas": 2},
        {"env": {"A": "1"}},
        {"model_runner": "v2"},
        {"async_chunk": True},
        {"outputs": (ResolvedEdge(0, 1, "shm", "a:C", stream={"frames": 5}),)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_every_value_of_a_stage_matters(fields: dict[str, Any]) -> None:
    assert deployment(**fields).config_hash != deployment().config_hash


def test_true_is_not_one() -> None:
    assert deployment(engine_args={"x": True}).config_hash != deployment(engine_args={"x": 1}).config_hash


def test_name_of_a_connector_does_not_matter() -> None:
    one, other = (deployment(outputs=(ResolvedEdge(0, 1, name, "a:C"),)) for name in ("shm", "memory"))

    assert one.config_hash == other.config_hash


def test_hash_is_the_same_in_every_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_stage; "
        "print(test_stage.deployment(env={'B': '1', 'A': '2'}).config_hash)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert found == {deployment(env={"A": "2", "B": "1"}).config_hash}
