"""Whole deployments: the order of layers, the seed's worked example, and what a resolved pipeline says."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.stage import ResolvedPipeline, Source
from omni_core.testing.plugins import make_manager, make_plugin

Resolve = Callable[..., ResolvedPipeline]

BASE = """
async_chunk: true
stages:
  - stage_id: 0
    gpu_memory_utilization: 0.9
    max_num_seqs: 32
  - stage_id: 1
    gpu_memory_utilization: 0.7
    max_num_seqs: 16
"""
OVERLAY = """
base_config: base.yaml
stages:
  - stage_id: 1
    gpu_memory_utilization: 0.5     # smaller GPU
"""


def test_worked_example_of_the_contract(deployments: Any) -> None:
    """PR-04."""
    deployments.write("base.yaml", BASE)

    resolved = deployments.resolve("three", OVERLAY, overrides='{"0": {"max_num_seqs": 8}}', max_model_len=16384)

    keys = ("gpu_memory_utilization", "max_num_seqs", "max_model_len")
    assert [tuple(stage.engine_args.get(key) for key in keys) for stage in resolved.stages] == [
        (0.9, 8, 16384),
        (0.5, 16, 16384),
        (None, None, 16384),
    ]
    override, flag = Source("stage override", "--stage-overrides 0.max_num_seqs"), Source("flag", "--max-model-len")
    assert [tuple(stage.sources.get(key) for key in keys) for stage in resolved.stages] == [
        (Source("base", "base.yaml:5:29"), override, flag),
        (Source("overlay", "my.yaml:5:29"), Source("base", "base.yaml:9:19"), flag),
        (None, None, flag),
    ]
    assert resolved.files == ("my.yaml", "base.yaml")


@pytest.mark.parametrize(
    ("base", "overlay", "flags", "overrides", "expected"),
    [
        ("max_num_seqs: 1", "", {"max_num_seqs": 16}, {"0": {"max_num_seqs": 8}}, [8, 16]),
        ("max_num_seqs: 1", "", {"max_num_seqs": 4}, None, [4, 4]),
        ("max_num_seqs: 1", "max_num_seqs: 2", {}, None, [2, None]),
        ("max_num_seqs: 1", "", {}, None, [1, None]),
        ("max_num_seqs: 1", "max_num_seqs: null", {}, None, [None, None]),
        ("", "", {}, None, [None, None]),
    ],
    ids=["override over flag", "flag over file", "overlay over base", "base", "null erases", "nothing"],
)
def test_each_layer_beats_the_one_below(
    deployments: Any, base: str, overlay: str, flags: dict[str, Any], overrides: Any, expected: list[int | None]
) -> None:
    """PR-01, PR-03."""
    deployments.write("base.yaml", f"stages: [{{stage_id: 0, {base}}}]")

    resolved = deployments.resolve(
        "two", f"base_config: base.yaml\nstages: [{{stage_id: 0, {overlay}}}]", overrides=overrides, **flags
    )

    assert [stage.engine_args.get("max_num_seqs") for stage in resolved.stages] == expected


PLATFORM = "platforms: {cpu: {stages: [{stage_id: 0, gpu_memory_utilization: 0.6, max_num_batched_tokens: 8192}]}}"


def test_platform_section_of_the_base_beats_a_stage_value_of_the_overlay(deployments: Any) -> None:
    """PR-03, row '3 over 4'."""
    deployments.write("base.yaml", PLATFORM)
    overlay = "base_config: base.yaml\nstages: [{stage_id: 0, gpu_memory_utilization: 0.5}]"

    assert deployments.resolve("two", overlay).stages[0].engine_args["gpu_memory_utilization"] == 0.6
    assert deployments.resolve("two", overlay, platform="cuda").stages[0].engine_args["gpu_memory_utilization"] == 0.5


def test_overlay_overrides_a_platform_section_inside_the_same_section(deployments: Any) -> None:
    deployments.write("base.yaml", PLATFORM)
    overlay = "base_config: base.yaml\nplatforms: {cpu: {stages: [{stage_id: 0, gpu_memory_utilization: 0.4}]}}"

    args = deployments.resolve("two", overlay).stages[0].engine_args

    assert args == {"gpu_memory_utilization": 0.4, "max_num_batched_tokens": 8192}


def test_flag_beats_the_platform_section(resolve: Resolve) -> None:
    """PR-03, row '2 over 3'."""
    resolved = resolve("two", PLATFORM, max_num_batched_tokens=4096)

    assert [stage.engine_args["max_num_batched_tokens"] for stage in resolved.stages] == [4096, 4096]


def test_flag_of_a_pipeline_wide_field_beats_stage_values(resolve: Resolve) -> None:
    """PR-01: observed in the reference for enable_prefix_caching."""
    text = "enable_prefix_caching: false\nstages: [{stage_id: 0, enable_prefix_caching: false}]"

    resolved = resolve("two", text, enable_prefix_caching=True)

    assert [stage.engine_args["enable_prefix_caching"] for stage in resolved.stages] == [True, True]


def test_flag_that_is_none_is_not_given(resolve: Resolve) -> None:
    assert resolve("two", "dtype: float32", dtype=None).stages[0].engine_args == {"dtype": "float32"}


def test_default_deploy_file_of_the_pipeline_is_used(deployments: Any) -> None:
    """RG-13."""
    deployments.write("bundle/two.yaml", "stages: [{stage_id: 1, max_num_seqs: 3}]")

    resolved = deployments.resolve("two")

    assert resolved.stages[1].engine_args == {"max_num_seqs": 3}
    assert resolved.files == ("bundle/two.yaml",)
    assert deployments.resolve("two", "dtype: float32").stages[1].engine_args == {"dtype": "float32"}


def test_missing_default_file_is_an_error(deployments: Any) -> None:
    """RG-13."""
    (deployments.bundle / "two.yaml").unlink()

    with pytest.raises(ConfigError, match=r"two\.yaml of pipeline 'two' is in no plugin's deploy folder"):
        deployments.resolve("two")


def test_pipeline_key_of_the_deploy_file_chooses(resolve: Resolve) -> None:
    """RG-04."""
    assert resolve("two", "pipeline: one").config.model_type == "one"
    with pytest.raises(ConfigError, match="there is no pipeline 'won'") as caught:
        resolve("two", "pipeline: won")
    assert caught.value.where == "my.yaml:1:11"


def test_empty_deployment_has_the_stages_of_the_pipeline(resolve: Resolve) -> None:
    """DY-02: `stages: []` is fine."""
    resolved = resolve("three", "stages: []")

    assert [stage.name for stage in resolved.stages] == ["0 (thinker)", "1 (talker)", "2 (vocoder)"]
    assert all(stage.engine_args == {} for stage in resolved.stages)


def test_resolved_stage_says_what_runs_it(resolve: Resolve) -> None:
    talker, vocoder = resolve("two").stages

    assert (talker.architecture, talker.architecture_target) == ("FakeModel", "omni_core.testing.fakes:SumVocoder")
    assert talker.runner == "omni_core.engine.ar.runner:ArRunner"
    assert vocoder.architecture == "FakeVocoder"
    assert vocoder.runner == "omni_core.engine.light_runner:LightRunner"
    assert vocoder.preload


def test_architecture_without_a_class_is_left_to_vllm(deployments: Any) -> None:
    deployments.hooks["omni_architectures"] = {"FakeVocoder": "omni_core.testing.fakes:SumVocoder"}

    assert deployments.resolve("two").stages[0].architecture_target is None


def test_stage_that_nothing_runs_is_an_error(deployments: Any) -> None:
    deployments.hooks["omni_architectures"] = {}

    with pytest.raises(ConfigError, match=r"nothing runs stage 1 \(vocoder\) of type LLM_GENERATION on cpu"):
        deployments.resolve("two")


def test_resolved_stage_can_be_sent_to_its_process(resolve: Resolve) -> None:
    stage = resolve("two", "stages: [{stage_id: 0, compilation_config: {mode: 3}}]").stages[0]

    assert pickle.loads(pickle.dumps(stage)) == stage


def test_values_that_no_stage_owns_are_kept(deployments: Any, tmp_path: Any) -> None:
    text = (
        f"custom_voice_dir: {tmp_path}\nactive_stream_window: 2\nduplex_session: {{max_sessions: 3}}\n"
        "stages: [{stage_id: 0, tts_max_instructions_length: 100}]"
    )

    resolved = deployments.resolve("two", text, cuda_mps=True)

    assert resolved.values == {
        "session_mode": "turn",
        "custom_voice_dir": str(tmp_path),
        "active_stream_window": 2,
        "duplex_session": {"max_sessions": 3},
        "cuda_mps": True,
        "tts_max_instructions_length": 100,
    }
    assert resolved.sources["cuda_mps"] == Source("flag", "--cuda-mps")
    assert resolved.sources["active_stream_window"].place == "my.yaml:2:23"


def test_missing_voice_folder_is_an_error(resolve: Resolve) -> None:
    """CV-01."""
    with pytest.raises(ConfigError, match="custom_voice_dir '/no/where' does not exist") as caught:
        resolve("two", "custom_voice_dir: /no/where")
    assert caught.value.where == "my.yaml:1:19"


def test_stage_may_have_a_checkpoint_of_its_own(resolve: Resolve, make_model: Callable[..., ModelInfo]) -> None:
    """SI-13."""
    other = make_model("other", model_type="x")

    stages = resolve("two", f"stages: [{{stage_id: 1, model: {other.path}}}]").stages

    assert stages[1].model == str(other.path)
    assert stages[0].model != stages[1].model
    assert "model" not in stages[1].engine_args


def test_wrong_target_of_a_pipeline_is_found_before_anything_starts(deployments: Any) -> None:
    """PC-08."""
    from dataclasses import replace

    two = next(config for config in deployments.hooks["omni_pipelines"] if config.model_type == "two")
    stage = replace(two.stages[0], custom_process_input_func="omni_core.no_such_module:f")
    deployments.hooks["omni_pipelines"] = [replace(two, stages=(stage, two.stages[1]))]

    with pytest.raises(ConfigError, match=r"no module 'omni_core\.no_such_module'") as caught:
        deployments.resolve("two")
    assert caught.value.where == "pipeline 'two', stage 0, custom_process_input_func"


def test_wrong_name_in_a_target_is_found_without_an_import(deployments: Any) -> None:
    """PC-08."""
    from dataclasses import replace

    two = next(config for config in deployments.hooks["omni_pipelines"] if config.model_type == "two")
    stage = replace(two.stages[0], async_chunk_process_next_stage_input_func="omni_core.testing.fakes:chunk_code")
    deployments.hooks["omni_pipelines"] = [replace(two, stages=(stage, two.stages[1]))]

    with pytest.raises(ConfigError, match=r"the module of 'omni_core\.testing\.fakes:chunk_code' has no chunk_code") as caught:
        deployments.resolve("two")
    assert caught.value.where == "pipeline 'two', stage 0, async_chunk_process_next_stage_input_func"
    assert caught.value.hint == "did you mean 'chunk_codes'?"


def test_plugin_may_refuse_a_resolved_configuration(deployments: Any) -> None:
    def refuse(stages: Any) -> None:
        if stages[0].engine_args.get("max_num_seqs") == 13:
            raise ConfigError("13 requests bring bad luck")

    deployments.hooks["omni_config_resolved"] = refuse

    with pytest.raises(ConfigError, match="bad luck"):
        deployments.resolve("two", max_num_seqs=13)
    assert deployments.resolve("two", max_num_seqs=12)


def test_weights_are_fetched_after_everything_else_is_in_order(deployments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str | None, bool]] = []

    def read(reference: str, *, revision: str | None = None, weights: bool = True) -> ModelInfo:
        calls.append((reference, revision, weights))
        return ModelInfo(reference, deployments.folder, {"model_type": "two"})

    monkeypatch.setattr("omni_core.deploy.resolve.read_model_info", read)
    manager = make_manager({"acme": make_plugin(**deployments.hooks)})

    with pytest.raises(ConfigError):
        resolve_deployment("org/two", flags={"max_num_seqs": 0}, manager=manager, platform="cpu")
    assert calls == [("org/two", None, False)]

    calls.clear()
    resolve_deployment("org/two", flags={"revision": "v1"}, manager=manager, platform="cpu")
    assert calls == [("org/two", "v1", False), ("org/two", "v1", True)]


def test_several_deploy_files_lie_on_top_of_each_other(deployments: Any) -> None:
    names = [deployments.write("a.yaml", "dtype: float32\nquantization: fp8"), deployments.write("b.yaml", "dtype: bfloat16")]

    stage = deployments.resolve("two", files=names).stages[0]

    assert stage.engine_args == {"dtype": "bfloat16", "quantization": "fp8"}
    assert (stage.sources["quantization"].layer, stage.sources["dtype"].layer) == ("base", "overlay")


def test_limit_of_instructions_is_one_value(resolve: Resolve) -> None:
    resolved = resolve("two", tts_max_instructions_length=7)

    assert resolved.values["tts_max_instructions_length"] == 7
    with pytest.raises(ConfigError, match=r"tts_max_instructions_length is 1 \(.*\) and 2"):
        resolve("two", "stages: [{stage_id: 0, tts_max_instructions_length: 1}, {stage_id: 1, tts_max_instructions_length: 2}]")


def test_duplex_sessions_have_a_plan(deployments: Any) -> None:
    """DX-02, DP-02, FE-06."""
    from dataclasses import replace

    deployments.hooks["omni_pipelines"] = [
        replace(config, duplex_plugin="omni_core.testing.fakes:SumVocoder", default_session_mode="turn")
        for config in deployments.hooks["omni_pipelines"]
        if config.model_type == "two"
    ]
    session = "duplex_session: {max_sessions: 4, replica_policy: least_sessions, max_sessions_per_replica: 1}"
    text = f"{session}\nsession_mode: duplex\nstages: [{{stage_id: 0, num_replicas: 2}}, {{stage_id: 1, num_replicas: 2}}]"

    plan = deployments.resolve("two", text).duplex

    assert plan is not None
    assert [dict(group) for group in plan.groups] == [{0: 0, 1: 0}, {0: 1, 1: 1}]
    with pytest.raises(ConfigError, match="needs max_sessions_per_replica"):
        deployments.resolve("two", text.replace(", max_sessions_per_replica: 1", ""))
    turn = deployments.resolve("two", session)
    assert turn.duplex is None
    assert turn.warnings == ("my.yaml:1:17: duplex_session has no effect, the session mode is turn",)


def test_checks_of_a_stage_are_part_of_resolving(resolve: Resolve) -> None:
    """BK-04, LR-01, E26."""
    with pytest.raises(ConfigError, match="there is no moe_backend 'tritn'"):
        resolve("two", "stages: [{stage_id: 0, moe_backend: tritn}]")
    (warning,) = resolve("two", "stages: [{stage_id: 0, max_loras: 2}]").warnings
    assert "max_loras has no effect without enable_lora" in warning
    stage = resolve("two", "stages: [{stage_id: 0, moe_backend: Flashinfer-Cutlass}]").stages[0]
    assert stage.engine_args["moe_backend"] == stage.sources["moe_backend"].value == "flashinfer_cutlass"


def test_mps_is_planned_on_cuda_alone(resolve: Resolve) -> None:
    """MP-01, MP-02."""
    text = "cuda_mps: true\nstages: [{stage_id: 0, devices: '0'}, {stage_id: 1, devices: '0'}]"

    plan = resolve("two", text, platform="cuda").mps

    assert plan is not None
    assert [daemon.users for daemon in plan.daemons] == [((0, 0), (1, 0))]
    on_cpu = resolve("two", text)
    assert on_cpu.mps is None
    assert on_cpu.warnings == ("my.yaml:1:11: cuda_mps has no effect on cpu",)


def test_hash_follows_the_values_and_not_the_layers(deployments: Any) -> None:
    deployments.write("base.yaml", "stages: [{stage_id: 0, max_num_seqs: 8}]")
    text = "base_config: base.yaml"

    assert (
        deployments.resolve("two", text).config_hash
        == deployments.resolve("two", max_num_seqs=8, set=["stages.1.max_num_seqs=!unset"]).config_hash
    )
    assert deployments.resolve("two", text).config_hash != deployments.resolve("two").config_hash


def test_resolving_imports_nothing_heavy() -> None:
    """A cold start has a quarter of a second; numpy alone would take a third of it."""
    heavy = {"numpy", "torch", "vllm", "transformers", "asyncio"}
    code = f"import sys, omni_core.deploy.resolve; print(sorted({heavy!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"
