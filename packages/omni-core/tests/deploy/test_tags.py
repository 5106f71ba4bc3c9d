"""`!unset`, `!append` and `!replace`: in overlays, in platform sections, and where they have nothing to act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]

BASE = """
dtype: float32
stages:
  - stage_id: 0
    dtype: bfloat16
    max_num_seqs: 4
    env: {A: x, B: y}
    compilation_config: {mode: 3, custom_ops: [a]}
    default_sampling_params: {stop_token_ids: [1, 2], top_k: 5}
"""


def stage(deployments: Any, fields: str, *, platform: str = "cpu", more: str = "") -> Any:
    deployments.write("base.yaml", BASE)
    text = f"base_config: base.yaml\nstages: [{{stage_id: 0, {fields} }}]\n{more}"
    return deployments.resolve("two", text, platform=platform).stages[0]


def test_unset_removes_the_value_of_the_files_below(deployments: Any) -> None:
    """DY-04: null means the engine's default; after `!unset` the pipeline-wide value applies."""
    assert stage(deployments, "dtype: !unset").engine_args["dtype"] == "float32"
    assert "dtype" not in stage(deployments, "dtype: null").engine_args
    assert stage(deployments, "env: {A: !unset }").env == {"B": "y"}
    assert "max_num_seqs" not in stage(deployments, "max_num_seqs: !unset").engine_args


def test_unset_removes_a_whole_section(deployments: Any) -> None:
    deployments.write("base.yaml", BASE)

    resolved = deployments.resolve("two", "base_config: base.yaml\nstages: !unset\ndtype: !unset")

    assert [found.engine_args for found in resolved.stages] == [{}, {}]


def test_append_extends_a_list(deployments: Any) -> None:
    """MG-03: lists replace, unless they are tagged."""
    found = stage(deployments, "default_sampling_params: {stop_token_ids: !append [7]}, compilation_config: {custom_ops: [b]}")

    assert found.sampling["stop_token_ids"] == [1, 2, 7, 2150]
    assert found.engine_args["compilation_config"] == {"mode": 3, "custom_ops": ["b"]}
    assert [loser.value for loser in found.losers["compilation_config.custom_ops"]] == [["a"]]


def test_replace_takes_a_mapping_whole(deployments: Any) -> None:
    """MG-02."""
    found = stage(deployments, "env: !replace {C: z}, compilation_config: {level: 1}")

    assert found.env == {"C": "z"}
    assert found.engine_args["compilation_config"] == {"mode": 3, "custom_ops": ["a"], "level": 1}
    assert [loser.value for loser in found.losers["env"]] == [{"A": "x", "B": "y"}]


def test_replace_takes_a_whole_stage(deployments: Any) -> None:
    deployments.write("base.yaml", BASE)

    resolved = deployments.resolve("two", "base_config: base.yaml\nstages: [!replace {stage_id: 0, max_num_seqs: 9}]")

    assert resolved.stages[0].engine_args == {"dtype": "float32", "max_num_seqs": 9}


def test_tag_of_a_platform_section_acts_on_the_stage(deployments: Any) -> None:
    section = (
        "platforms: {cpu: {stages: [{stage_id: 0, env: !replace {P: q}, max_num_seqs: !unset, "
        "compilation_config: {custom_ops: !append [p]}}]}}"
    )

    found = stage(deployments, "", more=section)

    assert found.env == {"P": "q"}
    assert found.engine_args == {"dtype": "bfloat16", "compilation_config": {"mode": 3, "custom_ops": ["a", "p"]}}
    assert stage(deployments, "", more=section, platform="cuda").engine_args["max_num_seqs"] == 4


def test_tag_of_an_overlays_platform_section_acts_on_the_section_below(deployments: Any) -> None:
    deployments.write("base.yaml", BASE + "platforms: {cpu: {stages: [{stage_id: 0, max_num_seqs: 8, env: {P: q}}]}}\n")
    overlay = "base_config: base.yaml\nplatforms: {cpu: {stages: [{stage_id: 0, max_num_seqs: !unset, env: !replace {R: s}}]}}"

    found = deployments.resolve("two", overlay).stages[0]

    assert found.engine_args["max_num_seqs"] == 4
    assert found.env == {"A": "x", "B": "y", "R": "s"}


def test_tags_with_nothing_below_them_are_plain_values(resolve: Resolve) -> None:
    text = (
        "dtype: !unset\nstages: [{stage_id: 0, max_num_seqs: !unset, env: !replace {A: x}, "
        "compilation_config: {custom_ops: !append [a]}}]"
    )

    found = resolve("two", text).stages[0]

    assert found.env == {"A": "x"}
    assert found.engine_args == {"compilation_config": {"custom_ops": ["a"]}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("max_num_seqs: !unset 3", "!unset takes nothing"),
        ("max_num_seqs: !append 3", "!append takes a list"),
        ("env: !append {A: x}", "!append takes a list"),
        ("env: !replace [1]", "!replace takes a mapping"),
        ("max_num_seqs: !replace 3", "!replace takes a mapping"),
        ("default_sampling_params: {stop: [!unset ]}", "an item of a list cannot be !unset"),
        ("max_num_seqs: !drop", "the tag '!drop' is not allowed"),
        ("compilation_config: {mode: !append [1]}", r"compilation_config.mode is no list at base.yaml:8:32"),
    ],
)
def test_wrong_use_of_a_tag_is_an_error(deployments: Any, fields: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        stage(deployments, fields)
    assert caught.value.where.startswith("my.yaml:2:")
