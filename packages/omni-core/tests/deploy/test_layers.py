"""Flags of special kinds: default sampling parameters, the tokenizer, and a pipeline's own names of fields."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omni_core.deploy import flags as flags_module
from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.errors import ConfigError
from omni_core.sampling import merge_sampling
from omni_core.stage import ResolvedPipeline, Source
from omni_core.testing.plugins import make_manager, make_plugin

Resolve = Callable[..., ResolvedPipeline]


def test_default_sampling_params_lie_between_the_file_and_the_request(resolve: Resolve) -> None:
    """SM-03: by stage id, and `extra_args` by key."""
    text = "async_chunk: false\nstages: [{stage_id: 1, default_sampling_params: {top_k: 50, extra_args: {a: 1, b: 1}}}]"
    given = {"1": {"temperature": 1, "extra_args": {"b": 2}}}

    stage = resolve("picture", text, default_sampling_params=given).stages[1]

    assert merge_sampling(stage.sampling, {"top_k": 20}) == {"top_k": 20, "temperature": 1, "extra_args": {"a": 1, "b": 2}}
    assert stage.sources["sampling.temperature"] == Source("flag", "--default-sampling-params 1.temperature")
    assert [loser.value for loser in stage.losers["sampling.extra_args.b"]] == [1]


def test_default_sampling_params_lose_against_overrides_and_constraints(resolve: Resolve) -> None:
    """SO-04, SM-01."""
    given = '{"0": {"top_k": 5, "min_p": 0.1, "detokenize": true}}'

    stage = resolve("two", default_sampling_params=given, overrides={"0": {"default_sampling_params": {"top_k": 7}}}).stages[0]

    assert stage.sampling == {"top_k": 7, "min_p": 0.1, "detokenize": False, "stop_token_ids": [2150]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "'{' is not JSON: .* at character 2"),
        ("[]", r"\[\] is no object"),
        ('{"x": {}}', "'x' is no stage id"),
        ('{"0": 1}', "the fields of stage 0 are 1"),
        ('{"9": {}}', "has no stage 9"),
        ('{"0": {"temprature": 1}}', "there is no sampling parameter temprature"),
        ('{"0": {"temperature": -1}}', "temperature must be"),
        ('{"0": {}, "0": {}}', "is there twice"),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=["json", "list", "id", "value", "unknown id", "unknown name", "range", "twice", "deep"],
)
def test_wrong_default_sampling_params_are_refused(resolve: Resolve, given: str, message: str) -> None:
    """SM-04, E13."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", default_sampling_params=given)
    assert caught.value.where.startswith("--default-sampling-params")


def test_wrong_json_ends_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """SM-04: exit before anything loads."""
    parser = argparse.ArgumentParser()
    add_deploy_flags(parser)

    with pytest.raises(SystemExit):
        parser.parse_args(["--default-sampling-params", "{"])
    assert "is not JSON" in capsys.readouterr().err


def test_flags_of_the_command_line_are_arguments_of_resolve() -> None:
    parser = argparse.ArgumentParser()
    add_deploy_flags(parser)

    line = ["--set", "a=1", "--set", "b=2", "--default-sampling-params", '{"0": {"top_k": 1}}', "--tokenizer", "t"]
    line += ["--deploy-config", "x.yaml", "--deploy-config", "y.yaml"]

    assert typed_flags(parser.parse_args(line)) == {
        "set": ["a=1", "b=2"],
        "default_sampling_params": {0: {"top_k": 1}},
        "tokenizer": "t",
        "deploy_config": ["x.yaml", "y.yaml"],
    }
    assert typed_flags(parser.parse_args([])) == {}


def change(deployments: Any, key: str, function: Callable[[Any], Any]) -> None:
    deployments.hooks["omni_pipelines"] = [
        function(config) if config.model_type == key else config for config in deployments.hooks["omni_pipelines"]
    ]


def test_tokenizer_is_for_stages_that_name_none(deployments: Any) -> None:
    """PR-06."""
    change(
        deployments,
        "three",
        lambda config: replace(
            config, stages=(config.stages[0], replace(config.stages[1], tokenizer_subdir="t"), config.stages[2])
        ),
    )

    resolved = deployments.resolve("three", "stages: [{stage_id: 2, tokenizer: own}]", tokenizer="given")

    assert [stage.engine_args.get("tokenizer") for stage in resolved.stages] == ["given", None, "own"]


def aliased(deployments: Any) -> None:
    change(deployments, "two", lambda config: replace(config, stage_cli_aliases={"talker_seqs": (0, "max_num_seqs")}))


def test_alias_of_a_pipeline_sets_one_stage(deployments: Any) -> None:
    """PR-07."""
    aliased(deployments)

    resolved = deployments.resolve("two", "stages: [{stage_id: 0, max_num_seqs: 1}]", talker_seqs=3, max_num_seqs=2)

    assert [stage.engine_args["max_num_seqs"] for stage in resolved.stages] == [3, 2]
    assert resolved.stages[0].sources["max_num_seqs"] == Source("flag", "--talker-seqs")


def test_stage_beats_the_alias_with_a_warning(deployments: Any) -> None:
    """PR-07."""
    aliased(deployments)

    resolved = deployments.resolve("two", overrides={"0": {"max_num_seqs": 5}}, talker_seqs=3)

    assert resolved.stages[0].engine_args == {"max_num_seqs": 5}
    assert resolved.warnings == ("--stage-overrides 0.max_num_seqs beats --talker-seqs, which is max_num_seqs of stage 0",)


def test_alias_of_another_stage_is_refused(deployments: Any) -> None:
    """PR-07."""
    aliased(deployments)

    assert deployments.resolve("two", overrides={"0": {"talker_seqs": 5}}).stages[0].engine_args == {"max_num_seqs": 5}
    with pytest.raises(ConfigError, match="talker_seqs is max_num_seqs of stage 0, not of stage 1"):
        deployments.resolve("two", overrides={"1": {"talker_seqs": 5}})


def test_alias_is_a_flag_of_the_command_line(deployments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PR-07."""
    aliased(deployments)
    manager = make_manager({"acme": make_plugin(**deployments.hooks)})
    monkeypatch.setattr(flags_module, "plugin_manager", lambda: manager)
    parser = argparse.ArgumentParser()
    add_deploy_flags(parser)

    assert typed_flags(parser.parse_args(["--talker-seqs", "3"])) == {"talker_seqs": 3}
    assert typed_flags(parser.parse_args([])) == {}


def test_trust_in_code_has_three_states(resolve: Resolve) -> None:
    """PR-08: not typed is not false."""
    text = "trust_remote_code: true"

    assert resolve("two", text).stages[0].engine_args == {"trust_remote_code": True}
    assert resolve("two", text, trust_remote_code=False).stages[0].engine_args == {"trust_remote_code": False}
    assert resolve("two").stages[0].engine_args == {}
