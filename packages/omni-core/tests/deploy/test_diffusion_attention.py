from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_core.deploy.diffusion_attention import ENVIRONMENT, attention_of_role, resolve_diffusion_attention
from omni_core.deploy.outcome import Outcome
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source

DENOISER = StagePipelineConfig(stage_id=1, model_stage="dit", execution_type=ExecutionType.DIFFUSION)
CONFIG = "diffusion_attention_config"
SHORT = "diffusion_attention_backend"


def resolve(
    arguments: dict[str, Any], sources: dict[str, Source] | None = None, environ: dict[str, str] | None = None
) -> Outcome:
    return resolve_diffusion_attention(DENOISER, arguments, sources or {}, environ=environ or {})


def config_of(arguments: dict[str, Any], **options: Any) -> Any:
    return resolve(arguments, **options).arguments.get(CONFIG)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"default": "TORCH_SDPA"}, {"default": {"backend": "TORCH_SDPA"}}),
        ({"default": {"backend": "flash_attn"}}, {"default": {"backend": "FLASH_ATTN"}}),
        (
            {"default": "SAGE_ATTN", "per_role": {"cross": "torch_sdpa", "self": {"backend": "CUDNN_ATTN"}}},
            {
                "default": {"backend": "SAGE_ATTN"},
                "per_role": {"cross": {"backend": "TORCH_SDPA"}, "self": {"backend": "CUDNN_ATTN"}},
            },
        ),
        (
            {"per_role": {"ltx2": {"audio_to_video": {"backend": "TORCH_SDPA"}}}},
            {"per_role": {"ltx2.audio_to_video": {"backend": "TORCH_SDPA"}}},
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "skip_softmax": {"target_sparsity": 0.5, "disabled_until_timestep": 1}}},
            {"default": {"backend": "TRTLLM_ATTN", "skip_softmax": {"target_sparsity": 0.5, "disabled_until_timestep": 1.0}}},
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "quant": {"dtype_qk": "int8", "q_block_size": 1, "k_block_size": 16}}},
            {"default": {"backend": "TRTLLM_ATTN", "quant": {"dtype_qk": "int8", "q_block_size": 1, "k_block_size": 16}}},
        ),
        (
            {"default": {"backend": "FLASHINFER_ATTN", "quant": {"dtype_qk": "bfloat16", "flashinfer_backend": "fa2"}}},
            {"default": {"backend": "FLASHINFER_ATTN", "quant": {"dtype_qk": "bfloat16", "flashinfer_backend": "fa2"}}},
        ),
        (
            {"default": {"backend": "FASTVIDEO_VSA", "fastvideo_vsa_topk": 64}},
            {"default": {"backend": "FASTVIDEO_VSA", "fastvideo_vsa_topk": 64}},
        ),
        (
            {"per_role": {"self": {"backend": "RAINFUSION_ATTN", "block_sparse": {"sparsity": 0.8, "start_step": 2}}}},
            {"per_role": {"self": {"backend": "RAINFUSION_ATTN", "block_sparse": {"sparsity": 0.8, "start_step": 2}}}},
        ),
        ({"default": "auto", "per_role": {"cross": "AUTO"}}, None),
        ({"default": None, "per_role": {"cross": None}}, None),
        ({}, None),
    ],
    ids=[
        "name",
        "object",
        "roles",
        "dotted role",
        "skip_softmax",
        "quant",
        "flashinfer",
        "topk",
        "sparse",
        "auto",
        "null",
        "empty",
    ],
)
def test_grammar_comes_to_one_form(given: Any, expected: Any) -> None:
    """BK-11: a spec is a backend or an object; `auto` is the same as unset."""
    assert config_of({CONFIG: given}) == expected


@pytest.mark.parametrize(
    ("given", "message", "path"),
    [
        ({"default": "TORCH_SPDA"}, "there is no attention backend 'TORCH_SPDA'", "default"),
        ({"defaults": "TORCH_SDPA"}, "extra inputs are not permitted", "defaults"),
        ({"default": {"backend": "TORCH_SDPA", "topk": 1}}, "extra inputs are not permitted", "default.topk"),
        ({"default": {"skip_softmax": {}}}, "field required", "default.backend"),
        ({"default": {"backend": 1}}, "input should be a valid string (got 1)", "default.backend"),
        ({"default": 7}, "input should be a valid dictionary", "default"),
        ({"per_role": "cross"}, "input should be a valid dictionary", "per_role"),
        ({"per_role": {"cross": {}}}, "field required", "per_role.cross.backend"),
        (
            {"default": {"backend": "TORCH_SDPA", "skip_softmax": {}}},
            "skip_softmax needs the backend TRTLLM_ATTN, not TORCH_SDPA",
            "default.skip_softmax",
        ),
        (
            {"default": {"backend": "auto", "skip_softmax": {}}},
            "skip_softmax needs the backend TRTLLM_ATTN, not auto",
            "default.skip_softmax",
        ),
        (
            {"per_role": {"self": {"backend": "SAGE_ATTN", "quant": {}}}},
            "quant needs the backend TRTLLM_ATTN or FLASHINFER_ATTN",
            "per_role.self.quant",
        ),
        (
            {"default": {"backend": "TORCH_SDPA", "fastvideo_vsa_topk": 4}},
            "fastvideo_vsa_topk needs the backend FASTVIDEO_VSA",
            "default.fastvideo_vsa_topk",
        ),
        (
            {"default": {"backend": "TORCH_SDPA", "block_sparse": {}}},
            "block_sparse needs the backend RAINFUSION_ATTN",
            "default.block_sparse",
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "skip_softmax": {"target_sparsity": 1.5}}},
            "less than or equal to 1",
            "default.skip_softmax.target_sparsity",
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "skip_softmax": {"threshold": float("inf")}}},
            "finite number",
            "default.skip_softmax.threshold",
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "skip_softmax": {"threshold": 1, "target_sparsity": 0}}},
            "both target_sparsity and threshold",
            "default.skip_softmax",
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "quant": {"dtype_qk": "float16"}}},
            "TRTLLM_ATTN has no dtype_qk 'float16'",
            "default.quant",
        ),
        (
            {"default": {"backend": "FLASHINFER_ATTN", "quant": {"k_block_size": 16}}},
            "FLASHINFER_ATTN does not read quant.k_block_size",
            "default.quant",
        ),
        (
            {"default": {"backend": "TRTLLM_ATTN", "quant": {"k_block_size": 2}}},
            "input should be 1, 4 or 16",
            "default.quant.k_block_size",
        ),
        (
            {"default": {"backend": "FASTVIDEO_VSA", "fastvideo_vsa_topk": 0}},
            "greater than or equal to 1",
            "default.fastvideo_vsa_topk",
        ),
    ],
)
def test_wrong_value_is_refused_with_its_path(given: Any, message: str, path: str) -> None:
    """BK-11, E26."""
    sources = {CONFIG: Source("overlay", "my.yaml:1:1"), f"{CONFIG}.{path}": Source("overlay", "my.yaml:5:5")}

    with pytest.raises(ConfigError) as caught:
        resolve({CONFIG: given}, sources)

    assert message in caught.value.message
    assert caught.value.message.startswith(f"stage 1 (dit): {CONFIG}.{path}: ")
    assert caught.value.param == f"{CONFIG}.{path}"
    assert caught.value.where == "my.yaml:5:5"


def test_unknown_backend_lists_the_choices() -> None:
    """E26."""
    with pytest.raises(ConfigError) as caught:
        resolve({CONFIG: {"default": "TORCH_SPDA"}})

    assert caught.value.hint.startswith("did you mean 'TORCH_SDPA'?; the choices are auto, TORCH_SDPA, FLASH_ATTN")


def test_shorthand_is_the_default_with_a_warning() -> None:
    """BK-11: it is deprecated."""
    source = Source("overlay", "my.yaml:2:2")

    outcome = resolve({SHORT: "sage_attn", CONFIG: {"per_role": {"cross": "TORCH_SDPA"}}}, {SHORT: source})

    assert outcome.arguments[CONFIG] == {
        "default": {"backend": "SAGE_ATTN"},
        "per_role": {"cross": {"backend": "TORCH_SDPA"}},
    }
    assert outcome.arguments[SHORT] is None
    assert outcome.sources == {f"{CONFIG}.default": source}
    assert outcome.warnings == (
        "my.yaml:2:2: stage 1 (dit): diffusion_attention_backend is deprecated, "
        "write diffusion_attention_config: {default: sage_attn}",
    )


def forms(short: str, long: str) -> dict[str, Source]:
    return {
        SHORT: Source(short, "S"),
        CONFIG: Source(long, "C"),
        f"{CONFIG}.default": Source(long, "C.default"),
    }


@pytest.mark.parametrize(("short", "long"), [("base", "base"), ("overlay", "platform"), ("flag", "flag")])
def test_both_forms_of_the_default_are_refused(short: str, long: str) -> None:
    """BK-11, E26."""
    with pytest.raises(
        ConfigError, match=r"has diffusion_attention_backend and diffusion_attention_config.default \(C"
    ) as caught:
        resolve({SHORT: "SAGE_ATTN", CONFIG: {"default": "TORCH_SDPA"}}, forms(short, long))
    assert caught.value.where == "S"


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ("flag", "base", "SAGE_ATTN"),
        ("stage override", "flag", "SAGE_ATTN"),
        ("overlay", "flag", "TORCH_SDPA"),
        ("flag", "stage override", "TORCH_SDPA"),
    ],
)
def test_form_on_the_command_line_replaces_the_other_one(short: str, long: str, expected: str) -> None:
    """BK-11, BK-06; what lost is remembered."""
    outcome = resolve({SHORT: "SAGE_ATTN", CONFIG: {"default": "TORCH_SDPA"}}, forms(short, long))

    assert outcome.arguments[CONFIG] == {"default": {"backend": expected}}
    (loser,) = outcome.losers[f"{CONFIG}.default.backend"]
    assert loser.layer == (long if expected == "SAGE_ATTN" else short)
    assert loser.value == ("TORCH_SDPA" if expected == "SAGE_ATTN" else "SAGE_ATTN")


def test_environment_is_the_last_fallback_before_the_platform() -> None:
    """BK-11."""
    environ = {ENVIRONMENT: "sage_attn"}

    alone = resolve({}, environ=environ)
    assert alone.arguments[CONFIG] == {"default": {"backend": "SAGE_ATTN"}}
    assert alone.sources[CONFIG] == alone.sources[f"{CONFIG}.default"] == Source("environment", ENVIRONMENT)

    assert config_of({CONFIG: {"default": "TORCH_SDPA"}}, environ=environ) == {"default": {"backend": "TORCH_SDPA"}}
    assert config_of({CONFIG: {"default": "auto"}}, environ=environ) == {"default": {"backend": "SAGE_ATTN"}}
    assert config_of({SHORT: "auto"}, environ=environ) == {"default": {"backend": "SAGE_ATTN"}}
    assert resolve({}, environ={ENVIRONMENT: ""}) == Outcome()
    assert resolve({}, environ={ENVIRONMENT: "auto"}) == Outcome()


def test_wrong_environment_is_named() -> None:
    """BK-11, E26."""
    with pytest.raises(ConfigError, match="there is no attention backend 'fast'") as caught:
        resolve({}, environ={ENVIRONMENT: "fast"})
    assert caught.value.where == ENVIRONMENT


def test_topk_of_the_stage_belongs_to_the_default_backend() -> None:
    """BK-11: fastvideo_vsa_topk only with FASTVIDEO_VSA."""
    found = resolve({SHORT: "FASTVIDEO_VSA", "fastvideo_vsa_topk": 32}).arguments
    assert found[CONFIG] == {"default": {"backend": "FASTVIDEO_VSA", "fastvideo_vsa_topk": 32}}
    assert found["fastvideo_vsa_topk"] is None

    for arguments in ({"fastvideo_vsa_topk": 32}, {"fastvideo_vsa_topk": 32, CONFIG: {"default": "TORCH_SDPA"}}):
        with pytest.raises(ConfigError, match="fastvideo_vsa_topk needs the backend FASTVIDEO_VSA"):
            resolve(arguments)

    nested = {"default": {"backend": "FASTVIDEO_VSA", "fastvideo_vsa_topk": 16}}
    with pytest.raises(
        ConfigError, match=r"fastvideo_vsa_topk 32 and diffusion_attention_config\.default\.fastvideo_vsa_topk 16"
    ):
        resolve({"fastvideo_vsa_topk": 32, CONFIG: nested})


def test_nothing_is_changed_where_nothing_is_set() -> None:
    assert resolve({"moe_backend": "auto"}) == Outcome()


@pytest.mark.parametrize(
    ("role", "category", "expected"),
    [
        ("ltx2.audio_to_video", "cross", "SAGE_ATTN"),
        ("ltx2.other", "cross", "CUDNN_ATTN"),
        ("self", None, "TORCH_SDPA"),
        ("other", "unknown", "TORCH_SDPA"),
    ],
)
def test_role_then_category_then_default(role: str, category: str | None, expected: str) -> None:
    """BK-11."""
    config = config_of(
        {CONFIG: {"default": "TORCH_SDPA", "per_role": {"ltx2.audio_to_video": "SAGE_ATTN", "cross": "CUDNN_ATTN"}}}
    )

    assert attention_of_role(config, role, category) == {"backend": expected}


def test_platform_decides_where_no_entry_fits() -> None:
    """BK-11."""
    assert attention_of_role(None, "self") is None
    assert attention_of_role({"per_role": {"cross": {"backend": "TORCH_SDPA"}}}, "self", "joint") is None


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_KEYS = st.sampled_from(["default", "per_role", "backend", "quant", "skip_softmax", "cross", "x.y", ""])
_TREES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_KEYS, _TREES, max_size=3))
def test_random_values_are_resolved_or_refused(value: dict[str, Any]) -> None:
    """BK-11: nothing but ConfigError, and a resolved value resolves to itself."""
    try:
        found = config_of({CONFIG: value})
    except ConfigError:
        return
    assert found is None or config_of({CONFIG: found}) == found
