import ast
import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest

from omni_core.deploy.engine_names import (
    ENGINE_ARG_NAMES,
    RESERVED_NAMES,
    engine_arg_choices,
    engine_arg_fault,
    engine_arg_kinds,
)
from omni_core.deploy.schema import StageDeployConfig
from omni_core.errors import ConfigError


@pytest.mark.engine
def test_names_are_those_of_vllm() -> None:
    """The table is vLLM's, less what Omni or the topology owns; its source is parsed, since importing vLLM costs seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    tree = ast.parse(Path(spec.origin).with_name("engine").joinpath("arg_utils.py").read_text())
    names = {
        item.target.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in {"EngineArgs", "AsyncEngineArgs"}
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_")
    }

    assert names - set(RESERVED_NAMES) - {"scheduler_cls"} == ENGINE_ARG_NAMES


def test_every_argument_has_kinds_or_choices() -> None:
    assert all(bool(engine_arg_kinds(name)) != bool(engine_arg_choices(name)) for name in ENGINE_ARG_NAMES)


@pytest.mark.parametrize("name", ["dtype", "mamba_ssm_cache_dtype", "max_lora_rank"])
def test_choices_of_a_field_of_its_own_are_those_of_the_table(name: str) -> None:
    literal = get_args(StageDeployConfig.model_fields[name].annotation)[0]

    assert tuple(map(str, get_args(literal))) == engine_arg_choices(name)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("seed", 7, ""),
        ("seed", None, ""),
        ("seed", "x", "input should be an integer"),
        ("seed", True, "input should be an integer"),
        ("watermark", 1, ""),
        ("watermark", "1", "input should be a number"),
        ("use_replayssm", 1, "input should be true or false"),
        ("hf_token", True, ""),
        ("hf_token", "abc", ""),
        ("hf_token", ["abc"], "input should be true or false or text"),
        ("mm_processor_kwargs", {"fps": 2}, ""),
        ("mm_processor_kwargs", [2], "input should be a mapping"),
        ("allowed_media_domains", "a.org", "input should be a list"),
        ("scheduling_policy", "fcfs", ""),
        ("scheduling_policy", "FCFS", "input should be one of fcfs, priority"),
        ("optimization_level", 2, ""),
        ("optimization_level", "2", "input should be one of 0, 1, 2, 3"),
        ("optimization_level", True, "input should be one of 0, 1, 2, 3"),
        ("mamba_backend", "triton", ""),
        ("sparse_indexer_topk_backend", "Deep-Select", ""),
    ],
)
def test_values_are_those_that_vllm_takes(name: str, value: object, fault: str) -> None:
    assert engine_arg_fault(name, value) == fault


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("stages: [{stage_id: 0, seed: x}]", "my.yaml:1:30: stages.0.seed: input should be an integer"),
        ("stages: [{stage_id: 0, engine_extras: {seed: x}}]", "my.yaml:1:46: stages.0.engine_extras.seed: input should be"),
        ("platforms: {cpu: {stages: [{stage_id: 0, seed: x}]}}", "my.yaml:1:48: platforms.cpu.stages.0.seed: input should be"),
    ],
)
def test_a_wrong_value_of_the_engine_is_refused_at_its_place(resolve: Any, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("two", text)

    assert str(caught.value).startswith(place)


def test_a_wrong_value_of_the_engine_is_refused_in_overrides(deployments: Any) -> None:
    with pytest.raises(ConfigError, match=r"--stage-overrides 0.kv_cache_dtype: .* input should be one of auto, float16"):
        deployments.resolve("two", "{}", overrides={"0": {"kv_cache_dtype": "fp9"}})
