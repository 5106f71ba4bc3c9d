import argparse
from typing import Literal, get_args, get_origin

import pytest

from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.deploy.overrides import flag_name
from omni_core.deploy.schema import StageDeployConfig


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    add_deploy_flags(parser)
    return parser


def test_flag_that_is_not_typed_leaves_no_trace(parser: argparse.ArgumentParser) -> None:
    """PR-02."""
    assert typed_flags(parser.parse_args([])) == {}


def test_typed_flags_have_their_types(parser: argparse.ArgumentParser) -> None:
    line = (
        "--max-num-seqs 8 --gpu-memory-utilization 0.5 --no-async-chunk --enforce-eager --model-runner v1 --dtype float32 "
        '--compilation-config {"mode":3} --lora-target-modules a,b --numa-bind-nodes [0,1] --max-model-len 16k '
        '--deploy-config a.yaml --deploy-config b.yaml --stage-overrides {"0":{"max_num_seqs":2}} --port 1 --revision main'
    )

    assert typed_flags(parser.parse_args(line.split())) == {
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.5,
        "async_chunk": False,
        "enforce_eager": True,
        "model_runner": "v1",
        "dtype": "float32",
        "compilation_config": {"mode": 3},
        "lora_target_modules": ["a", "b"],
        "numa_bind_nodes": [0, 1],
        "max_model_len": 16000,
        "deploy_config": ["a.yaml", "b.yaml"],
        "stage_overrides": {0: {"max_num_seqs": 2}},
        "revision": "main",
    }


CHOICES = {
    name: get_args(literal)
    for name, field in StageDeployConfig.model_fields.items()
    for literal in (field.annotation, *get_args(field.annotation))
    if get_origin(literal) is Literal
}


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_can_be_typed_and_is_what_the_field_takes(parser: argparse.ArgumentParser, name: str) -> None:
    for choice in CHOICES[name]:
        typed = typed_flags(parser.parse_args([flag_name(name), str(choice)]))

        assert typed == {name: choice}
        assert type(typed[name]) is type(choice)
        StageDeployConfig.model_validate(typed)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--enable-prefix-caching", True),
        ("--no-enable-prefix-caching", False),
        ("--trust-remote-code", True),
        ("--no-trust-remote-code", False),
    ],
)
def test_every_boolean_can_be_switched_off(parser: argparse.ArgumentParser, option: str, expected: bool) -> None:
    """PR-09."""
    (value,) = typed_flags(parser.parse_args([option])).values()

    assert value is expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--stage-overrides", "{"], "is not JSON"),
        (["--stage-overrides", '{"a": {}}'], "is no stage id"),
        (["--max-num-seqs", "many"], "is no whole number"),
        (["--compilation-config", "[]"], "is no JSON object"),
        (["--compilation-config", "{"], "is not JSON"),
        (["--model-runner", "v3"], "invalid choice"),
        (["--max-lora-rank", "12"], "invalid choice"),
        (["--max-lora-rank", "high"], "is no whole number"),
        (["--numa-bind-nodes", "[0"], "is no JSON list"),
    ],
)
def test_wrong_value_ends_the_parsing_with_2(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], line: list[str], message: str
) -> None:
    """SO-01: nothing has been loaded by then."""
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(line)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_says_what_each_flag_means(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())

    assert "Share of the device's memory that the stage may use in all" in text
    assert "--async-chunk, --no-async-chunk" in text
    assert "--devices" not in text
    assert "--cuda-mps" in text
