"""One command of a pipeline whose stages are started one by one: what its flags mean, and what all commands must agree on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_core.deploy.agreement import disagreement
from omni_core.deploy.stage_command import StageCommand, resolve_stage_command
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.platforms import CPU, CUDA
from omni_core.testing.plugins import make_manager, make_plugin

TWO_GPUS = "stages: [{stage_id: 0, devices: '0', max_num_seqs: 4}, {stage_id: 1, devices: '1', max_num_seqs: 8}]\n"


@pytest.fixture
def command(deployments: Any) -> Any:
    def make(stage_id: int | None, text: str | None = None, *, model: str = "two", **options: Any) -> StageCommand:
        if text is not None:
            options["deploy_config"] = deployments.write("my.yaml", text)
        return resolve_stage_command(
            ModelInfo(model, deployments.folder, {"model_type": model}),
            stage_id,
            manager=make_manager({"acme": make_plugin(**deployments.hooks)}),
            **{"platform": CPU, **options},
        )

    return make


def test_flags_are_for_the_commands_own_stage(command: Any) -> None:
    """SB-05."""
    worker = command(1, TWO_GPUS, flags={"max_num_seqs": 2})

    assert [stage.engine_args["max_num_seqs"] for stage in worker.pipeline.stages] == [4, 2]
    assert worker.own_stages == {1}


def test_flags_of_a_head_without_stages_have_no_effect_and_it_says_so(command: Any) -> None:
    """SB-02."""
    head = command(None, TWO_GPUS, flags={"max_num_seqs": 2})

    assert [stage.engine_args["max_num_seqs"] for stage in head.pipeline.stages] == [4, 8]
    assert any("--max-num-seqs has no effect" in text for text in head.pipeline.warnings)
    assert head.own_stages == frozenset()


def test_own_override_beats_the_flag(command: Any) -> None:
    worker = command(1, TWO_GPUS, flags={"max_num_seqs": 2}, stage_overrides='{"1": {"max_num_seqs": 3}}')

    assert worker.pipeline.stages[1].engine_args["max_num_seqs"] == 3


def test_unknown_stage_is_an_error_that_lists_the_ids(command: Any) -> None:
    """SB-03, E31."""
    with pytest.raises(ConfigError, match="has no stage 7") as unknown:
        command(7)

    assert unknown.value.where == "--stage-id"
    assert "0 (talker), 1 (vocoder)" in unknown.value.hint


def test_local_replicas_beat_the_deploy_file_and_share_its_devices(command: Any) -> None:
    """SB-06."""
    worker = command(1, TWO_GPUS.replace("'1'", "'0,1,2'"), replicas=3)

    assert [stage.num_replicas for stage in worker.pipeline.stages] == [1, 3]


@pytest.mark.parametrize(
    ("stage_id", "visible", "devices"),
    [(0, "0", "0"), (1, "1", "0"), (1, "0,1", "1"), (1, None, "1")],
    ids=["first", "only its own", "all", "not limited"],
)
def test_command_that_sees_as_many_devices_as_its_stage_needs_uses_them(
    command: Any, stage_id: int, visible: str | None, devices: str
) -> None:
    """SB-11: `CUDA_VISIBLE_DEVICES=1 ... --stage-id 1` with a deploy file that gives stage 1 the device 1."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = command(stage_id, TWO_GPUS, platform=CUDA, environ=environ)

    assert found.pipeline.stages[stage_id].devices == devices


def test_devices_that_were_given_for_the_stage_are_kept(command: Any) -> None:
    found = command(1, TWO_GPUS, platform=CUDA, environ={"CUDA_VISIBLE_DEVICES": "1"}, stage_overrides={1: {"devices": "1"}})

    assert found.pipeline.stages[1].devices == "1"


def test_own_flags_and_overrides_are_no_disagreement(command: Any) -> None:
    """SB-04, SB-05: each command may tune its own stage."""
    head = command(0, TWO_GPUS, flags={"max_num_seqs": 1})
    worker = command(1, TWO_GPUS, replicas=1, stage_overrides={1: {"max_num_seqs": 3}})

    assert disagreement(head.facts, worker.facts) == ""


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (TWO_GPUS.replace("8", "9"), "deploy file.stages.1.max_num_seqs"),
        ("async_chunk: false\n" + TWO_GPUS, "async_chunk, deploy file.async_chunk and edge.0-1.async_chunk"),
        (None, "deploy file"),
    ],
    ids=["a stage", "async_chunk", "no file"],
)
def test_other_deploy_file_is_a_disagreement_with_its_keys(command: Any, theirs: str | None, named: str) -> None:
    """SB-04."""
    head = command(0, TWO_GPUS)
    worker = command(1, theirs)

    assert named in disagreement(head.facts, worker.facts)


def test_spelling_of_the_deploy_file_does_not_matter(command: Any) -> None:
    head = command(0, TWO_GPUS)
    worker = command(1, "# the same\n" + TWO_GPUS.replace(", ", " , "))

    assert disagreement(head.facts, worker.facts) == ""


def test_other_checkpoint_is_a_disagreement(command: Any, deployments: Any) -> None:
    """SB-04: two sizes of one model have equal deploy files."""
    config = deployments.folder / "config.json"
    config.write_text(json.dumps({"model_type": "two", "hidden_size": 1024}))
    head = command(0)
    config.write_text(json.dumps({"model_type": "two", "hidden_size": 2048}))
    worker = command(1)

    assert disagreement(head.facts, worker.facts) == "model.config.json"


def test_pipeline_wide_flag_must_be_the_same(command: Any) -> None:
    head = command(0, flags={"async_chunk": False})
    worker = command(1)

    assert "async_chunk" in disagreement(head.facts, worker.facts)


def test_facts_hold_no_value_that_could_be_secret(command: Any) -> None:
    """SB-10."""
    text = TWO_GPUS.replace("max_num_seqs: 4", "env: {API_KEY: hunter2}")

    facts = command(0, text).facts

    assert "hunter2" not in json.dumps(facts)
    assert "deploy file.stages.0.env.API_KEY" in facts


def test_long_disagreement_is_cut() -> None:
    assert disagreement(dict.fromkeys("abcdef", "1"), {}) == "a, b, c and 3 more"
    assert disagreement({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == "b"
    assert disagreement({"a": "1", "b": "2"}, {}) == "a and b"
