import ast
import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.deploy.lora import ADAPTER_STAGE, LORA_OPTIONS, LORA_RANKS, adapter_of, check_adapter_request, check_lora
from omni_core.deploy.outcome import Outcome
from omni_core.errors import ConfigError, RequestError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.request import LoraAdapter
from omni_core.stage import ResolvedStage, Source
from omni_core.testing.pipelines import fake_pipeline

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
VOCODER = StagePipelineConfig(stage_id=1, model_stage="vocoder", execution_type=ExecutionType.LLM_GENERATION)
DENOISER = StagePipelineConfig(stage_id=1, model_stage="dit", execution_type=ExecutionType.DIFFUSION)


def written(arguments: dict[str, Any]) -> dict[str, Source]:
    return {name: Source("overlay", f"my.yaml:{line}:3") for line, name in enumerate(arguments, 1)}


def check(stage: StagePipelineConfig, **arguments: Any) -> Outcome:
    return check_lora(stage, arguments, written(arguments))


@pytest.mark.parametrize("stage", [TALKER, VOCODER], ids=["AR", "generation"])
def test_options_need_enable_lora_on_the_same_stage(stage: StagePipelineConfig) -> None:
    """LR-01."""
    name = f"stage {stage.stage_id} ({stage.model_stage})"

    assert check(stage, max_lora_rank=64, max_loras=2).warnings == (
        f"my.yaml:1:3: {name}: max_lora_rank has no effect without enable_lora: true",
        f"my.yaml:2:3: {name}: max_loras has no effect without enable_lora: true",
    )
    assert len(check(stage, enable_lora=False, max_cpu_loras=2).warnings) == 1
    assert check(stage, enable_lora=True, max_lora_rank=64, max_loras=2, max_cpu_loras=2) == Outcome()


def test_stage_without_adapters_is_silent() -> None:
    assert check(TALKER) == Outcome()
    assert check(TALKER, enable_lora=False, fully_sharded_loras=False) == Outcome()


def test_rank_that_vllm_has_not_is_refused_with_the_next_one() -> None:
    """LR-01: vLLM would refuse it once the stage's process runs."""
    with pytest.raises(ConfigError, match=r"stage 0 \(talker\): max_lora_rank 24 is none of 1, 8, 16, 32") as caught:
        check(TALKER, enable_lora=True, max_lora_rank=24)
    assert caught.value.hint.startswith("set 32;")
    assert caught.value.where == "my.yaml:2:3"


@pytest.mark.parametrize("arguments", [{"max_loras": 4, "max_cpu_loras": 2}, {"max_cpu_loras": 0}])
def test_cache_holds_at_least_one_batch(arguments: dict[str, Any]) -> None:
    """LR-01, LR-06."""
    with pytest.raises(ConfigError, match="is below max_loras"):
        check(TALKER, enable_lora=True, **arguments)


def test_denoising_stage_has_no_enable_lora() -> None:
    """LR-05, E27."""
    with pytest.raises(ConfigError, match=r"stage 1 \(dit\) denoises and has no enable_lora") as caught:
        check(DENOISER, enable_lora=True)
    assert caught.value.hint == "set lora_path, lora_scale and lora_backend"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lora_path": "/a"},
        {"lora_path": ["/a"], "lora_backend": "peft", "lora_scale": 0.5},
        {"lora_path": ["/a", "/b"], "lora_backend": "distill"},
        {"max_cpu_loras": 3},
    ],
)
def test_denoising_stage_loads_its_adapters(arguments: dict[str, Any]) -> None:
    """LR-05, LR-06."""
    assert check(DENOISER, **arguments) == Outcome()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lora_backend": "distill"}, "lora_backend distill needs a lora_path"),
        ({"lora_backend": "distill", "lora_path": []}, "lora_backend distill needs a lora_path"),
        ({"lora_path": ["/a", "/b"]}, "lora_backend peft loads one adapter at start, and lora_path names 2"),
        ({"lora_path": ["/a", "/b"], "lora_backend": "peft"}, "loads one adapter at start"),
    ],
)
def test_backend_and_paths_must_fit(arguments: dict[str, Any], message: str) -> None:
    """LR-05."""
    with pytest.raises(ConfigError, match=message) as caught:
        check(DENOISER, **arguments)
    assert caught.value.where == "my.yaml:1:3"
    assert caught.value.param == "lora_path"


def test_scale_of_fused_adapters_has_no_effect() -> None:
    """LR-05."""
    (warning,) = check(DENOISER, lora_path="/a", lora_scale=0.5, lora_backend="distill").warnings

    assert warning == "my.yaml:2:3: stage 1 (dit): lora_scale has no effect with lora_backend distill"


def resolved(stage: StagePipelineConfig, **arguments: Any) -> ResolvedStage:
    return ResolvedStage("two", stage, "/m", "FakeModel", None, "x:Y", engine_args=arguments)


def test_adapter_of_a_request_goes_to_stage_0_which_must_take_adapters() -> None:
    """LR-04."""
    assert ADAPTER_STAGE == 0
    check_adapter_request(resolved(TALKER, enable_lora=True))
    check_adapter_request(resolved(replace(DENOISER, stage_id=0)))
    for stage in (resolved(TALKER), resolved(TALKER, enable_lora=False)):
        with pytest.raises(RequestError, match=r"stage 0 \(talker\) takes no LoRA adapters") as caught:
            check_adapter_request(stage)
        assert "enable_lora: true for stage 0" in caught.value.hint


def parse(*path: str) -> ast.Module:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    return ast.parse(Path(spec.origin).parent.joinpath(*path).read_text())


@pytest.mark.engine
def test_lora_tables_are_those_of_vllm() -> None:
    """LR-01: options of EngineArgs, and the ranks of LoRAConfig."""
    config = parse("config", "lora.py")
    ranks = next(
        node.value.slice
        for node in config.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "MaxLoRARanks"
        and isinstance(node.value, ast.Subscript)
    )
    assert tuple(ast.literal_eval(ranks)) == LORA_RANKS

    (lora,) = [node for node in config.body if isinstance(node, ast.ClassDef) and node.name == "LoRAConfig"]
    fields = {node.target.id for node in lora.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert (fields - {"target_modules"}) | {"lora_target_modules"} == LORA_OPTIONS


def test_an_adapter_is_ours_or_vllms_and_must_be_there(tmp_path: Path) -> None:
    """LR-04."""
    pipeline = fake_pipeline(engine_args={0: {"enable_lora": True}})
    (tmp_path / "adapter_config.json").write_text("{}")
    theirs = SimpleNamespace(name="warm", path=str(tmp_path), lora_int_id=3)

    assert adapter_of(None, pipeline) is None
    assert adapter_of(theirs, pipeline) == adapter_of(LoraAdapter("warm", str(tmp_path)), pipeline)
    for wrong, text in ((object(), "has a name and a path"), (LoraAdapter("warm", str(tmp_path / "no")), "is not in")):
        with pytest.raises(RequestError, match=text) as caught:
            adapter_of(wrong, pipeline)
        assert caught.value.param == "lora_request"
    with pytest.raises(RequestError, match="takes no LoRA adapters"):
        adapter_of(theirs, fake_pipeline())
