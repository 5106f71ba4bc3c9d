import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError, RequestError
from omni_core.sampling import SAMPLING_RULES, apply_constraints, check_sampling, merge_sampling


def test_extra_args_are_merged_by_key_and_others_replaced() -> None:
    """SM-03: the worked example of deploy file, flag and request."""
    merged = merge_sampling(
        {"steps": 50, "extra_args": {"a": 1, "b": 1}},
        {"guidance_scale": 1, "extra_args": {"b": 2}},
        None,
        {"steps": 20},
    )

    assert merged == {"steps": 20, "guidance_scale": 1, "extra_args": {"a": 1, "b": 2}}


def test_merging_leaves_its_layers_alone() -> None:
    below = {"extra_args": {"mtp": {"top_k": 50, "top_p": 1.0}}}

    merged = merge_sampling(below, {"extra_args": {"mtp": {"top_k": 1}}})

    assert merged == {"extra_args": {"mtp": {"top_k": 1, "top_p": 1.0}}}
    assert below == {"extra_args": {"mtp": {"top_k": 50, "top_p": 1.0}}}


@pytest.mark.parametrize(("given", "expected"), [([5, 2150], [5, 2150]), (None, [2150]), ([2150, 5, 5], [2150, 5])])
def test_required_stop_tokens_extend_without_duplicates(given: list[int] | None, expected: list[int]) -> None:
    """SM-01."""
    params = {} if given is None else {"stop_token_ids": given}

    assert apply_constraints(params, {"stop_token_ids": [2150]})["stop_token_ids"] == expected


def test_scalar_constraint_replaces_and_the_input_is_not_changed() -> None:
    """SM-01, SM-02."""
    params = {"detokenize": True, "top_k": 5}

    applied = apply_constraints(params, {"detokenize": False})

    assert applied == {"detokenize": False, "top_k": 5}
    assert params == {"detokenize": True, "top_k": 5}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "top_p": 1, "top_k": -1, "max_tokens": 1, "min_tokens": 0, "repetition_penalty": 0.1},
        {"seed": -(2**63), "stop_token_ids": [1, 2], "stop": "x", "detokenize": True, "max_tokens": None, "top_k": 0},
        {"extra_args": {"mtp": {"do_sample": False, "temperature": 0.0, "top_k": 50, "top_p": 0.5}, "other": 1}},
        {"extra_args": None},
    ],
    ids=["limits", "types", "predictor", "null"],
)
def test_good_parameters_pass(params: dict[str, Any]) -> None:
    check_sampling(params, where="request")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.0}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids"),
        ({"stop_token_ids": 2150}, "stop_token_ids"),
        ({"detokenize": 1}, "detokenize"),
        ({"ignore_eos": "false"}, "ignore_eos"),
        ({"n": 2}, "n"),
        ({"extra_args": []}, "extra_args"),
        ({"extra_args": {"mtp": 1}}, "extra_args.mtp"),
        ({"extra_args": {"mtp": {"top_k": "x"}}}, "extra_args.mtp.top_k"),
        ({"extra_args": {"mtp": {"topk": 1}}}, "extra_args.mtp.topk"),
    ],
)
def test_bad_parameter_is_named(params: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_sampling(params, where="stage 0")

    assert caught.value.param == param
    assert caught.value.where == "stage 0"
    assert caught.value.hint


def test_unknown_name_gets_a_suggestion_in_the_asked_for_class() -> None:
    with pytest.raises(ConfigError, match="there is no sampling parameter temprature") as caught:
        check_sampling({"temprature": 1}, where="my.yaml:3:5", error=ConfigError)
    assert caught.value.hint == "did you mean 'temperature'?"


@pytest.mark.engine
def test_names_are_those_of_vllm() -> None:
    """The table holds names of vLLM's SamplingParams; its source is parsed, since importing vLLM costs seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    tree = ast.parse(Path(spec.origin).with_name("sampling_params.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SamplingParams"]
    names = {
        item.target.id
        for item in classes[0].body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_")
    }

    assert set(SAMPLING_RULES) - names == set()
