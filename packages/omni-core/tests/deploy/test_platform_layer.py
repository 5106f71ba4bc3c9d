from collections.abc import Callable, Mapping
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.platforms import Platform
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager, make_plugin

Resolve = Callable[..., ResolvedPipeline]


def test_only_the_running_platforms_section_applies(resolve: Resolve) -> None:
    """PL-01, PL-05."""
    text = "dtype: bfloat16\nplatforms: {cpu: {dtype: float32}, npu: {dtype: float16}}"

    assert resolve("two", text, platform="cpu").stages[0].engine_args == {"dtype": "float32"}
    assert resolve("two", text, platform="cuda").stages[0].engine_args == {"dtype": "bfloat16"}


def test_section_merges_into_stages_and_makes_missing_entries(resolve: Resolve) -> None:
    """PL-02 to PL-04."""
    text = """
stages: [{stage_id: 0, devices: "0,1", tensor_parallel_size: 2, env: {A: 1}, compilation_config: {mode: 3}}]
platforms:
  cpu:
    stages:
      - {stage_id: 0, devices: "2,3", env: {B: 2}, compilation_config: {cudagraph_mode: NONE}}
      - {stage_id: 1, enforce_eager: true}
"""
    first, second = resolve("two", text).stages

    assert (first.devices, first.env) == ("2,3", {"A": "1", "B": "2"})
    assert first.engine_args["compilation_config"] == {"mode": 3, "cudagraph_mode": "NONE"}
    assert second.engine_args == {"enforce_eager": True}
    assert second.sources["enforce_eager"].layer == "platform"


def test_unknown_platform_is_a_warning(resolve: Resolve) -> None:
    """PL-01: it may be a plugin's."""
    (warning,) = resolve("two", "platforms: {cudaa: {dtype: float32}}").warnings

    assert warning == "my.yaml:1:13: no platform here is called cudaa (did you mean 'cuda'?)"


def overriding(fragment: Mapping[str, Any]) -> Any:
    def implementation(platform: Platform, pipeline: Any) -> Mapping[str, Any] | None:
        return fragment if platform.name == "cpu" and pipeline.model_type == "two" else None

    return implementation


def test_plugins_fragment_lies_between_sections_and_flags(deployments: Any) -> None:
    fragment = {"dtype": "float16", "stages": [{"stage_id": 0, "max_num_seqs": 2, "enforce_eager": True}]}
    deployments.hooks["omni_platform_overrides"] = overriding(fragment)

    stage = deployments.resolve("two", "platforms: {cpu: {dtype: float32}}", max_num_seqs=5).stages[0]

    assert stage.engine_args == {"dtype": "float16", "max_num_seqs": 5, "enforce_eager": True}
    assert (stage.sources["dtype"].layer, stage.sources["dtype"].place) == ("platform", "plugin acme")
    assert deployments.resolve("one").stages[0].engine_args == {}


def test_wrong_fragment_names_its_plugin(deployments: Any) -> None:
    deployments.hooks["omni_platform_overrides"] = overriding({"dtypo": "float16"})

    with pytest.raises(ConfigError, match="dtypo is not one of") as caught:
        deployments.resolve("two")
    assert caught.value.where == "plugin acme"


def test_first_plugin_wins_over_later_ones(deployments: Any) -> None:
    from omni_core.deploy.resolve import resolve_deployment
    from omni_core.model_info import ModelInfo

    deployments.hooks["omni_platform_overrides"] = overriding({"dtype": "half", "quantization": "first"})
    other = make_plugin(omni_platform_overrides=overriding({"dtype": "float", "quantization": None}))
    # pluggy calls the plugin that was registered last first.
    manager = make_manager({"bolt": other, "acme": make_plugin(**deployments.hooks)})

    model = ModelInfo("two", deployments.folder, {"model_type": "two"})
    stage = resolve_deployment(model, manager=manager, platform="cpu").stages[0]

    assert stage.engine_args == {"dtype": "half", "quantization": "first"}
