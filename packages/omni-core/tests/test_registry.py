import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.plugins import PluginManager
from omni_core.registry import architectures, pipelines, resolve_pipeline
from omni_core.testing.plugins import make_manager, make_plugin

STAGE = StagePipelineConfig(stage_id=0, model_stage="only", final_output=True)


def pipeline(key: str, *hf: str, **fields: Any) -> PipelineConfig:
    return PipelineConfig(model_type=key, stages=(STAGE,), hf_architectures=hf, **fields)


def manager_with(*configs: PipelineConfig, **hooks: Any) -> PluginManager:
    return make_manager({"acme": make_plugin(omni_pipelines=list(configs), **hooks)})


def key_of(model: ModelInfo, manager: PluginManager, **kwargs: Any) -> str:
    return resolve_pipeline(model, manager, **kwargs).record.model_type


def test_key_of_the_deploy_file_beats_everything(make_model: Callable[..., ModelInfo]) -> None:
    """RG-04."""
    manager = manager_with(pipeline("a"), pipeline("a_thinker_only"))

    assert key_of(make_model(model_type="a"), manager, key="a_thinker_only") == "a_thinker_only"


def test_unknown_key_lists_the_known(make_model: Callable[..., ModelInfo]) -> None:
    """RG-04, E02."""
    with pytest.raises(ConfigError, match="there is no pipeline 'tolker'") as caught:
        key_of(make_model(), manager_with(pipeline("talker"), pipeline("other")), key="tolker", where="my.yaml:1:11")
    assert "did you mean 'talker'?" in caught.value.hint
    assert "other" in caught.value.hint
    assert caught.value.where == "my.yaml:1:11"


def test_hook_comes_before_the_registrys_own_rules(make_model: Callable[..., ModelInfo]) -> None:
    def choose(model: ModelInfo) -> str | None:
        return "b" if model.config.get("kind") == "b" else None

    manager = manager_with(pipeline("a"), pipeline("b"), omni_resolve_pipeline=choose)

    assert key_of(make_model(model_type="a", kind="b"), manager) == "b"
    assert key_of(make_model(model_type="a"), manager) == "a"


def test_hook_that_names_no_pipeline_is_named(make_model: Callable[..., ModelInfo]) -> None:
    manager = manager_with(pipeline("a"), omni_resolve_pipeline=lambda model: "b")

    with pytest.raises(ConfigError) as caught:
        key_of(make_model(model_type="a"), manager)
    assert caught.value.where == "omni_resolve_pipeline of acme"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "a", "architectures": ["B"]}, "a"),
        ({"model_type": "x", "architectures": ["B"]}, "b"),
        ({"architectures": ["X", "B"]}, "b"),
        ({"architecture": "a"}, "a"),
        ({"architecture": "B"}, "b"),
    ],
    ids=["model_type first", "then architectures", "without model_type", "single name is a key", "single architecture"],
)
def test_checkpoint_metadata_chooses(make_model: Callable[..., ModelInfo], config: Mapping[str, Any], expected: str) -> None:
    """RG-05 to RG-07."""
    assert key_of(make_model(**config), manager_with(pipeline("a", "A"), pipeline("b", "B"))) == expected


def test_name_of_a_checkpoint_chooses_where_its_metadata_says_nothing() -> None:
    """RG-05: the longest key in the last part of the name."""
    manager = manager_with(pipeline("qux", "Q"), pipeline("qux_omni", "O"))

    def chosen(reference: str, **config: Any) -> str:
        return key_of(ModelInfo(reference, Path(reference), config), manager)

    assert chosen("org/Qux-Omni-7B") == "qux_omni"
    assert chosen("org/Qux-Omni-7B", architectures=["Unknown"]) == "qux_omni"
    assert chosen("org/Qux-Omni-7B", architectures=["Q"]) == "qux"
    with pytest.raises(ConfigError, match="no pipeline serves"):
        chosen("qux_omni/other")
    with pytest.raises(ConfigError, match="no pipeline serves"):
        chosen("org/Qux-Omni-7B", model_type="another")


def test_predicate_chooses_between_equal_architectures(make_model: Callable[..., ModelInfo]) -> None:
    """RG-07, RG-16: two versions of one model share their architecture."""
    manager = manager_with(
        pipeline("v45", "Shared", hf_config_predicate=lambda config: config.get("version") == "4.5"),
        pipeline("v26", "Shared", hf_config_predicate=lambda config: config.get("version") == "2.6"),
    )

    assert key_of(make_model(architectures=["Shared"], version="4.5"), manager) == "v45"
    assert key_of(make_model(architectures=["Shared"], version="2.6"), manager) == "v26"


def test_predicate_that_raises_is_a_no(make_model: Callable[..., ModelInfo], caplog: pytest.LogCaptureFixture) -> None:
    """RG-07."""
    manager = manager_with(pipeline("bad", "S", hf_config_predicate=lambda config: 1 / 0), pipeline("good", "S"))

    with caplog.at_level(logging.ERROR):
        assert key_of(make_model(architectures=["S"]), manager) == "good"
    assert "predicate of pipeline bad (acme) failed" in caplog.text


def test_ambiguity_is_an_error_that_names_both(make_model: Callable[..., ModelInfo]) -> None:
    """RG-08, E04."""
    with pytest.raises(ConfigError, match=r"'a' \(acme\) and 'b' \(acme\) both match") as caught:
        key_of(make_model(architectures=["S"]), manager_with(pipeline("a", "S"), pipeline("b", "S")))
    assert "pipeline: KEY" in caught.value.hint


def test_diffusers_class_chooses(tmp_path: Any) -> None:
    """RG-05."""
    (tmp_path / "model_index.json").write_text('{"_class_name": "OldFlux"}')
    manager = manager_with(pipeline("flux", diffusers_class_name="Flux", diffusers_class_aliases=("OldFlux",)))

    assert key_of(ModelInfo("m", tmp_path, {}), manager) == "flux"


def test_name_of_the_checkpoint_is_the_last_resort(tmp_path: Any) -> None:
    """RG-05: the longest key in the last part of the name."""
    manager = manager_with(pipeline("talk"), pipeline("talk_local"))

    assert key_of(ModelInfo("org-talk/My-Talk-Local-v1.5", tmp_path, {}), manager) == "talk_local"
    with pytest.raises(ConfigError):
        key_of(ModelInfo("org-talk/other", tmp_path, {}), manager)


def test_unknown_model_lists_broken_plugins_and_known_pipelines(make_model: Callable[..., ModelInfo]) -> None:
    """E03."""

    def fails() -> Any:
        raise ImportError("libfoo.so.3")

    manager = make_manager(
        {"acme": make_plugin(omni_pipelines=[pipeline("talker", "TalkerModel")]), "omni-bad": make_plugin(omni_pipelines=fails)}
    )

    with pytest.raises(ConfigError, match=r"no pipeline serves .* model_type 'tolker'") as caught:
        key_of(make_model(model_type="tolker", architectures=["Z"]), manager)

    assert "did you mean 'talker'?" in caught.value.hint
    assert "omni-bad is broken (in omni_pipelines: ImportError: libfoo.so.3)" in caught.value.hint
    assert "install the package" in caught.value.hint


def test_two_distributions_with_one_key_are_named() -> None:
    """RG-02."""
    plugin = make_plugin(omni_pipelines=[pipeline("a")])

    with pytest.raises(ConfigError, match="'a' is offered by both bolt and acme"):
        pipelines(make_manager({"acme": plugin, "bolt": make_plugin(omni_pipelines=[replace(pipeline("a"))])}))


def test_architectures_of_all_plugins_are_one_mapping() -> None:
    manager = make_manager(
        {"a": make_plugin(omni_architectures={"A": "m:A"}), "b": make_plugin(omni_architectures={"B": "m:B"})}
    )

    assert architectures(manager) == {"A": "m:A", "B": "m:B"}


def test_two_distributions_with_one_architecture_are_named() -> None:
    one, two = make_plugin(omni_architectures={"A": "m:A"}), make_plugin(omni_architectures={"A": "m:B"})

    with pytest.raises(ConfigError, match="the architecture 'A' is offered by both b and a"):
        architectures(make_manager({"a": one, "b": two}))
