import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.backends import ATTENTION_BACKENDS, LINEAR_BACKENDS, MOE_BACKENDS, check_backends
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
VOCODER = StagePipelineConfig(stage_id=1, model_stage="vocoder", execution_type=ExecutionType.LLM_GENERATION)
DENOISER = StagePipelineConfig(stage_id=1, model_stage="dit", execution_type=ExecutionType.DIFFUSION)


def written(*names: str) -> dict[str, Source]:
    return {name: Source("overlay", f"my.yaml:{line}:3") for line, name in enumerate(names, 1)}


@pytest.mark.parametrize("stage", [TALKER, VOCODER, DENOISER], ids=["AR", "generation", "diffusion"])
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("moe_backend", "Triton", "triton"),
        ("moe_backend", "FlashInfer-CUTLASS", "flashinfer_cutlass"),
        ("linear_backend", "Deep-Gemm", "deep_gemm"),
        ("linear_backend", "torch", "torch"),
    ],
)
def test_kernel_names_are_normalised(stage: StagePipelineConfig, field: str, value: str, expected: str) -> None:
    """BK-01, BK-04: lower case, hyphens as underscores, for stages of every type."""
    assert check_backends(stage, {field: value}, written(field)).arguments == {field: expected}


def test_omitted_backends_stay_omitted_and_auto_stays_auto() -> None:
    """BK-03: explicit auto is not the same as omission, which leaves the model's own choice in force."""
    assert check_backends(TALKER, {}, {}).arguments == {}
    assert check_backends(TALKER, {"moe_backend": "AUTO"}, {}).arguments == {"moe_backend": "auto"}
    assert check_backends(TALKER, {"attention_backend": "Auto"}, {}).arguments == {"attention_backend": "auto"}


def test_attention_of_an_ar_stage_is_a_name_of_vllm() -> None:
    """BK-05."""
    assert check_backends(TALKER, {"attention_backend": "triton_attn"}, {}).arguments == {"attention_backend": "TRITON_ATTN"}


@pytest.mark.parametrize(
    ("field", "value", "choice"),
    [
        ("moe_backend", "tritn", "did you mean 'triton'?"),
        ("linear_backend", "fast", "the choices are auto, cutlass, flashinfer_cutlass"),
        ("attention_backend", "TRITON-ATTN", "did you mean 'TRITON_ATTN'?"),
        ("attention_backend", "mine", "one that a plugin of vLLM registers goes to attention_config: {backend: NAME}"),
    ],
)
def test_unknown_backend_is_refused_with_the_choices(field: str, value: str, choice: str) -> None:
    """BK-04, BK-05, E26: stage, field and choices."""
    with pytest.raises(ConfigError) as caught:
        check_backends(TALKER, {field: value}, written(field))

    assert caught.value.message == f"stage 0 (talker): there is no {field} {value!r}"
    assert choice in caught.value.hint
    assert "the choices are auto, " in caught.value.hint
    assert caught.value.where == "my.yaml:1:3"
    assert caught.value.param == field


def test_attention_backend_of_a_denoising_stage_is_refused_with_its_own_field() -> None:
    """BK-01, E26."""
    with pytest.raises(ConfigError, match=r"stage 1 \(dit\) denoises and has no attention_backend") as caught:
        check_backends(DENOISER, {"attention_backend": "TORCH_SDPA"}, written("attention_backend"))
    assert caught.value.hint == "set diffusion_attention_config: {default: TORCH_SDPA}"


def test_denoising_stage_gets_its_attention_and_kernels_at_once() -> None:
    """BK-01, BK-11."""
    arguments = {"diffusion_attention_config": {"default": "torch_sdpa"}, "moe_backend": "auto", "linear_backend": "Torch"}

    assert check_backends(DENOISER, arguments, {}).arguments == {
        "moe_backend": "auto",
        "linear_backend": "torch",
        "diffusion_attention_config": {"default": {"backend": "TORCH_SDPA"}},
        "diffusion_attention_backend": None,
        "fastvideo_vsa_topk": None,
    }


@pytest.mark.parametrize(
    ("field", "own", "group", "nested"),
    [
        ("moe_backend", "auto", "kernel_config", {"moe_backend": "triton", "enable_jit_warmup": True}),
        ("linear_backend", "torch", "kernel_config", {"linear_backend": "marlin"}),
        ("attention_backend", "FLASH_ATTN", "attention_config", {"backend": "TRITON_ATTN", "flash_attn_version": 3}),
    ],
)
def test_field_beats_the_same_value_in_a_nested_configuration(field: str, own: str, group: str, nested: dict[str, Any]) -> None:
    """BK-07: with a warning, also where vLLM would not see an explicit auto, or would refuse both."""
    sources = {**written(field), f"{group}.{'backend' if group == 'attention_config' else field}": Source("base", "b.yaml:9:9")}

    outcome = check_backends(TALKER, {field: own, group: nested}, sources)

    rest = {name: value for name, value in nested.items() if name not in (field, "backend")}
    assert outcome.arguments == {field: own, group: rest or None}
    (warning,) = outcome.warnings
    assert warning.startswith(f"b.yaml:9:9: stage 0 (talker): {group}.")
    assert f"is ignored, {field} {own!r} (my.yaml:1:3) sets it" in warning


def test_equal_nested_value_is_no_conflict() -> None:
    """BK-07."""
    outcome = check_backends(TALKER, {"attention_backend": "flash_attn", "attention_config": {"backend": "FLASH_ATTN"}}, {})

    assert outcome.arguments == {"attention_backend": "FLASH_ATTN", "attention_config": None}
    assert outcome.warnings == ()


def test_nested_configuration_alone_is_left_as_it_is() -> None:
    """BK-07: configurations with extras only stay supported."""
    assert check_backends(TALKER, {"attention_config": {"backend": "REGISTERED_ONE"}}, {}).arguments == {}


def parse(*path: str) -> ast.Module:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    return ast.parse(Path(spec.origin).parent.joinpath(*path).read_text())


def literal(tree: ast.Module, name: str) -> tuple[str, ...]:
    """Return the values of `NAME = Literal[...]`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            assert isinstance(node.value, ast.Subscript)
            return tuple(ast.literal_eval(node.value.slice))
    raise AssertionError(f"vLLM has no {name}")


@pytest.mark.engine
def test_kernel_tables_are_those_of_vllm() -> None:
    """BK-04: KernelConfig's literals; vLLM's source is parsed, since importing it costs seconds."""
    tree = parse("config", "kernel.py")

    assert literal(tree, "MoEBackend") == MOE_BACKENDS
    assert literal(tree, "LinearBackend") == LINEAR_BACKENDS


@pytest.mark.engine
def test_attention_table_is_that_of_vllm() -> None:
    """BK-05."""
    tree = parse("v1", "attention", "backends", "registry.py")

    (enum,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum"]
    names = [node.targets[0].id for node in enum.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    assert tuple(names) == ATTENTION_BACKENDS
