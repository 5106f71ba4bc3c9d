"""Attention of stages that denoise: the grammar of `diffusion_attention_config`, and which backend a role gets (BK-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source
from omni_core.suggest import did_you_mean

ENVIRONMENT = "DIFFUSION_ATTENTION_BACKEND"
"""Variable with the backend of stages for which nothing else sets one."""

DIFFUSION_ATTENTION_BACKENDS = (
    "TORCH_SDPA",
    "FLASH_ATTN",
    "FLASH_ATTN_HUB",
    "FLASH_ATTN_3_HUB",
    "CUDNN_ATTN",
    "FLASHINFER_ATTN",
    "TRTLLM_ATTN",
    "SAGE_ATTN",
    "SAGE_ATTN_3",
    "FASTVIDEO_VSA",
    "RAINFUSION_ATTN",
)
"""Backends of attention in a denoising stage, besides `auto`, which means unset."""

_CONFIG = "diffusion_attention_config"
_SHORT = "diffusion_attention_backend"
_TOPK = "fastvideo_vsa_topk"
_ONLY_WITH = {
    "skip_softmax": ("TRTLLM_ATTN",),
    "quant": ("TRTLLM_ATTN", "FLASHINFER_ATTN"),
    _TOPK: ("FASTVIDEO_VSA",),
    "block_sparse": ("RAINFUSION_ATTN",),
}
"""Which backends read an option; elsewhere it would have no effect."""
_QUANT_TYPES = {"TRTLLM_ATTN": ("int8", "fp8_e4m3"), "FLASHINFER_ATTN": ("float16", "bfloat16")}
_QUANT_KEYS = {
    "TRTLLM_ATTN": {"dtype_qk", "q_block_size", "k_block_size"},
    "FLASHINFER_ATTN": {"dtype_qk", "dtype_vo", "flashinfer_backend"},
}
_ROLE = "per_role."
_RANKS = {"flag": 1, "stage override": 2}

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class SkipSoftmax(_Strict):
    """Skipping blocks of the softmax that hardly matter."""

    target_sparsity: Share | None = None
    """Point on the checkpoint's calibrated curve; excludes `threshold`."""
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Threshold without calibration."""
    disabled_until_timestep: Share | None = None
    """Steps above this normalised time stay dense."""


class AttentionQuant(_Strict):
    """Precision of the attention's products; each backend reads its own keys."""

    dtype_qk: Literal["int8", "fp8_e4m3", "float16", "bfloat16"] | None = None
    """Type of queries and keys."""
    q_block_size: Literal[1, 4, 16] | None = None
    """Tokens that share a scale, of queries."""
    k_block_size: Literal[1, 4, 16] | None = None
    """Tokens that share a scale, of keys."""
    dtype_vo: str | None = None
    """Type of values and output."""
    flashinfer_backend: str | None = None
    """Kernels of FlashInfer."""


class BlockSparse(_Strict):
    """Attention over a part of the key blocks."""

    sparsity: Share | None = None
    """Share of key blocks that are dropped."""
    start_step: Count | None = None
    """First denoising steps that stay dense."""
    end_step: Count | None = None
    """Last denoising steps that stay dense."""
    precision: Literal["bf16", "fp8", "mxfp4", "mix"] | None = None
    """Precision of the kernel."""
    skip_layers: str | None = None
    """Layers that stay dense, such as `0-3,38`."""


class AttentionSpec(_Strict):
    """One backend and its options; a plain string is the same as `{backend: ...}`."""

    backend: str
    """Name of the backend; `auto` means unset."""
    skip_softmax: SkipSoftmax | None = None
    """With TRTLLM_ATTN."""
    quant: AttentionQuant | None = None
    """With TRTLLM_ATTN and FLASHINFER_ATTN."""
    fastvideo_vsa_topk: Annotated[int, Field(ge=1)] | None = None
    """Key and value blocks for each query block; with FASTVIDEO_VSA."""
    block_sparse: BlockSparse | None = None
    """With RAINFUSION_ATTN."""


class DiffusionAttentionConfig(_Strict):
    """The value of `diffusion_attention_config`."""

    default: AttentionSpec | None = None
    """For every role without an entry of its own."""
    per_role: dict[str, AttentionSpec] = Field(default_factory=dict)
    """By role (`self`, `cross`, or one that the model declares) or by category of roles."""


def resolve_diffusion_attention(
    stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source], *, environ: Mapping[str, str]
) -> Outcome:
    """Bring a stage's attention fields into one `diffusion_attention_config`.

    Args:
        stage: The topology.
        arguments: The stage's engine arguments.
        sources: Where they came from.
        environ: The environment of the stage's processes.

    Raises:
        ConfigError: A value is wrong, both forms set the default backend (E26), or an option needs another backend.
    """
    given, shorthand, topk = (arguments.get(name) for name in (_CONFIG, _SHORT, _TOPK))
    reader = _Reader(stage, {**sources, ENVIRONMENT: Source("environment", ENVIRONMENT)})
    specs = reader.read(given) if given is not None else {}
    origin, lost = _CONFIG, None
    warnings: tuple[str, ...] = ()
    if shorthand is not None:
        text = f"{_SHORT} is deprecated, write {_CONFIG}: {{default: {shorthand}}}"
        warnings = (f"{place_of(sources, _SHORT)}: {stage_name(stage)}: {text}",)
        default = reader.spec(shorthand, _SHORT)
        if reader.shorthand_wins(specs):
            lost = reader.source_of_default(specs.get("default"))
            specs["default"], origin = default, _SHORT
        else:
            lost = replace(sources.get(_SHORT, Source("default")), value=shorthand)
    if _is_unset(specs.get("default")) and environ.get(ENVIRONMENT):
        specs["default"], origin = reader.spec(environ[ENVIRONMENT], ENVIRONMENT), ENVIRONMENT
    if topk is not None:
        specs["default"] = reader.add_topk(specs.get("default"), topk)
    config = _config({path: spec for path, spec in specs.items() if not _is_unset(spec)})
    if given is None and shorthand is None and not config:
        return Outcome()
    changed_sources = {}
    if origin != _CONFIG and "default" in config:
        changed_sources[f"{_CONFIG}.default"] = reader.sources.get(origin, Source("default"))
        if given is None:
            changed_sources[_CONFIG] = changed_sources[f"{_CONFIG}.default"]
    return Outcome(
        {_CONFIG: config or None, _SHORT: None, _TOPK: None},
        sources=changed_sources,
        losers={f"{_CONFIG}.default.backend": (lost,)} if lost is not None else {},
        warnings=warnings,
    )


def _is_unset(spec: Mapping[str, Any] | None) -> bool:
    return spec is None or spec["backend"] == "auto"


def _config(specs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return specs by path as a `diffusion_attention_config`."""
    roles = {path.removeprefix(_ROLE): spec for path, spec in specs.items() if path.startswith(_ROLE)}
    return {
        **({"default": specs["default"]} if "default" in specs else {}),
        **({"per_role": roles} if roles else {}),
    }


def attention_of_role(config: Mapping[str, Any] | None, role: str, category: str | None = None) -> Mapping[str, Any] | None:
    """Return the spec of a role: its own, its category's, or the default; None where the platform decides (BK-11).

    Args:
        config: A resolved `diffusion_attention_config`.
        role: Name that the model gives to this attention, such as `cross`.
        category: More general name, for a role without an entry of its own.
    """
    per_role = (config or {}).get("per_role") or {}
    found = per_role.get(role) or per_role.get(category) or (config or {}).get("default")
    return found if found is None else dict(found)


class _Reader:
    """Read the specs of one stage."""

    def __init__(self, stage: StagePipelineConfig, sources: Mapping[str, Source]) -> None:
        self.sources = sources
        self._stage = stage

    def read(self, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the specs by path: `default`, `per_role.ROLE`."""
        plain = {key: value for key, value in given.items() if value is not None}
        if isinstance(plain.get("default"), str):
            plain["default"] = {"backend": plain["default"]}
        if isinstance(plain.get("per_role"), Mapping):
            plain["per_role"] = _flat_roles(plain["per_role"])
        config = self._validate(DiffusionAttentionConfig, plain, _CONFIG).model_dump(exclude_none=True)
        found = {"default": config["default"]} if "default" in config else {}
        found.update({f"{_ROLE}{role}": spec for role, spec in config["per_role"].items()})
        return {path: self._checked(spec, _CONFIG, path) for path, spec in found.items()}

    def spec(self, backend: str, field: str) -> dict[str, Any]:
        """Return the checked spec of a backend that is given by name."""
        return self._checked({"backend": backend}, field)

    def shorthand_wins(self, specs: Mapping[str, Any]) -> bool:
        """Return whether the shorthand sets the default; the form of a higher layer replaces the other one."""
        if "default" not in specs:
            return True
        short, long = self._rank(_SHORT), self._rank(f"{_CONFIG}.default")
        if short == long:
            raise ConfigError(
                f"{stage_name(self._stage)} has {_SHORT} and {_CONFIG}.default ({place_of(self.sources, _CONFIG, 'default')})",
                where=place_of(self.sources, _SHORT),
                hint=f"keep {_CONFIG}.default",
                param=_SHORT,
            )
        return short > long

    def source_of_default(self, spec: Mapping[str, Any] | None) -> Source | None:
        """Return where the long form sets the default; None where it does not."""
        source = self.sources.get(f"{_CONFIG}.default") or self.sources.get(_CONFIG)
        return None if spec is None or source is None else replace(source, value=spec["backend"])

    def _rank(self, name: str) -> int:
        source = self.sources.get(name) or self.sources.get(_CONFIG)
        return _RANKS.get(source.layer, 0) if source is not None else 0

    def add_topk(self, default: Mapping[str, Any] | None, topk: int) -> dict[str, Any]:
        """Return the default spec with the stage's `fastvideo_vsa_topk`."""
        nested = (default or {}).get(_TOPK, topk)
        if nested != topk:
            raise ConfigError(
                f"{stage_name(self._stage)} has {_TOPK} {topk} and {_CONFIG}.default.{_TOPK} {nested}",
                where=place_of(self.sources, _TOPK),
                hint="keep one of them",
                param=_TOPK,
            )
        return self._checked({"backend": "auto", **(default or {}), _TOPK: topk}, _TOPK)

    def _checked(self, spec: dict[str, Any], *path: str) -> dict[str, Any]:
        name = str(spec["backend"])
        backend = "auto" if name.lower() == "auto" else name.upper()
        choices = ("auto", *DIFFUSION_ATTENTION_BACKENDS)
        if backend not in choices:
            close = did_you_mean(backend, choices)
            self._refuse(
                f"there is no attention backend {name!r}",
                f"{close + '; ' if close else ''}the choices are {', '.join(choices)}",
                path,
            )
        for option, backends in _ONLY_WITH.items():
            if option in spec and backend not in backends:
                self._refuse(
                    f"{option} needs the backend {' or '.join(backends)}, not {backend}",
                    f"remove {option} or set that backend",
                    (*path, option),
                )
        if {"target_sparsity", "threshold"} <= set(spec.get("skip_softmax", {})):
            self._refuse("skip_softmax has both target_sparsity and threshold", "keep one of them", (*path, "skip_softmax"))
        self._check_quant(backend, spec.get("quant", {}), (*path, "quant"))
        return {**spec, "backend": backend}

    def _check_quant(self, backend: str, quant: Mapping[str, Any], path: tuple[str, ...]) -> None:
        foreign = sorted(set(quant) - _QUANT_KEYS.get(backend, set(quant)))
        if foreign:
            self._refuse(f"{backend} does not read quant.{foreign[0]}", "remove it", path)
        types = _QUANT_TYPES.get(backend, ())
        if types and quant.get("dtype_qk", types[0]) not in types:
            self._refuse(f"{backend} has no dtype_qk {quant['dtype_qk']!r}", f"its types are {', '.join(types)}", path)

    def _validate(self, model: type[BaseModel], given: Mapping[str, Any], field: str) -> BaseModel:
        try:
            return model.model_validate(given)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
        path = [str(part) for part in fault["loc"]]
        shown = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"
        self._refuse(f"{fault['msg'][:1].lower()}{fault['msg'][1:]}{shown}", "correct the value", (field, *path))

    def _refuse(self, message: str, hint: str, path: tuple[str, ...]) -> NoReturn:
        name = ".".join(path)
        raise ConfigError(
            f"{stage_name(self._stage)}: {name}: {message}",
            where=place_of(self.sources, *name.split(".")),
            hint=hint,
            param=name,
        )


def _flat_roles(roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return roles by their full name: dotted flags give `ltx2.audio_to_video` as a mapping inside a mapping."""
    found: dict[str, Any] = {}
    for role, value in roles.items():
        if value is None:
            continue
        if isinstance(value, str):
            found[str(role)] = {"backend": value}
        elif isinstance(value, Mapping) and value and not set(value) & set(AttentionSpec.model_fields):
            found.update({f"{role}.{name}": spec for name, spec in _flat_roles(value).items()})
        else:
            found[str(role)] = value
    return found
