"""What a model class declares about itself, as one record that the runners read once at load (rule MR-08).

A class declares either `capabilities = ModelCapabilities(...)` or the contract's attribute names (`mtp`, `mtp_output_key`,
`mtp_graph_safe` and so on). `read_capabilities` is the only place that looks at a model class; the hot path reads plain fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ConfigError


@dataclass(frozen=True)
class SampleUniforms:
    """How many uniform random numbers a predictor wants for each row: `[steps, vocab_size]` in [0, 1)."""

    steps: int
    vocab_size: int


@dataclass(frozen=True)
class MtpSampling:
    """Sampling of the predictor for one request. Temperature 0 or `do_sample: false` is greedy."""

    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps every candidate."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    """Lowers codes that the request's earlier frames had in the same place; only where the model `penalises_repetition`."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely candidate is taken."""
        return not self.do_sample or self.temperature == 0


@dataclass(frozen=True)
class MtpCapability:
    """A batched predictor that turns each sampled token into a frame of codes.

    The model's method is `mtp(token_ids [B], embeds [B, H], hidden [B, H], conditioning [B, H], **extra)` and returns
    `(embeds [B, H], codes [B, Q] int)`: the input embeddings of the next position, and the frame. `extra` holds, as declared,
    `generators: list[torch.Generator | None]`, `req_infos: list[MtpSampling]`, `uniforms: [B, steps, vocab_size]`,
    `slots: int64 [B]`, `positions: int64 [B]`.

    The sampled token need not be part of the frame. A model that decides before each frame whether there is one more gives
    logits for just two ids, one for "another frame" and one that ends the request, and takes the whole frame from `hidden`.
    """

    output_key: str | tuple[str, str]
    """Name under which the codes leave the stage."""
    num_codes: int
    """Q, the number of codes in a frame; the most of them where it is the checkpoint that says how many."""
    validity_key: str | None = None
    graph_safe: bool = False
    disable_graph: bool = False
    per_row_generators: bool = False
    accepts_req_infos: bool = False
    accepts_slots: bool = False
    """Whether `mtp` looks at what the model has recorded of each request."""
    accepts_positions: bool = False
    """Whether `mtp` is also told the positions that its results are the inputs of."""
    penalises_repetition: bool = False
    """Whether `mtp` follows `MtpSampling.repetition_penalty`."""
    token_sampling: Mapping[str, Any] | None = None
    """Sampling parameters of the token where a request's own ones are meant for the frame; greedy requests stay greedy.

    None: a request's parameters are the token's, and the frame's are in `extra_args["mtp"]`.
    """
    sample_uniforms: SampleUniforms | None = None
    sampling: MtpSampling = MtpSampling()
    """The model's own defaults."""

    @property
    def payload_key(self) -> str:
        """The output key as one string, parts joined by a dot."""
        return self.output_key if isinstance(self.output_key, str) else ".".join(self.output_key)


@dataclass(frozen=True)
class HiddenCapture:
    """Which hidden states of a model of vLLM's own leave its stage, for requests that a next stage works on.

    A plugin declares it for the class through the hook `omni_model_capabilities`; the class itself is not changed. Each
    position is captured once and in order: those of the prompt with the first output, then one for each generated token that
    was fed back.
    """

    target: str
    """`module:function(hf_config) -> Mapping[str, int | "last"]`, from the name of an output to what it holds: 0 the input
    embeddings of layer 0, k the output of layer k - 1 before the final norm, `last` what the final norm gives."""


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model can do beyond vLLM's own contract. The default record means vLLM's path, untouched."""

    computes_inputs: bool = False
    """The model has `omni_begin`, `omni_embed` and `omni_end`: its input embeddings are a function of (slot, position)."""
    gated_inputs: bool = False
    """Rows arrive while the request runs (`omni_ingest`); a position is not computed before its row is there."""
    row_width: int | str = 0
    """Width of the rows of gated inputs; 0 means that of the model's input embeddings, a name is an attribute of its
    configuration."""
    cacheable_prompts: bool = False
    """Equal prompt ids under equal `EngineInput.cache_key` mean equal inputs, so that requests may share what is computed of
    them (vLLM's prefix caching). Not so where the ids are placeholders."""
    mtp: MtpCapability | None = None
    capture: HiddenCapture | None = None
    """Hidden states that requests take to the next stage; only for models that do not compute their inputs."""
    constrains_sampling: bool = False
    """Which tokens may be sampled depends on what the request has made so far: the model has `omni_constrain`."""
    returns_tuple: bool = False
    """`forward` returns (hidden, captured)."""
    native_data_plane: bool = False
    duplex: bool = False


@dataclass(frozen=True)
class DuplexCapabilities:
    """What a duplex plugin can do, as far as a deployment depends on it. The default record promises nothing.

    The names are the contract's. The record is light, so that a deployment can be checked before the plugin itself is imported.
    """

    supports_session_resume: bool = True
    """A client may come back to its session. Its state is in one frontend's process, so only one frontend may run (FE-02)."""
    supports_multi_session_same_replica: bool = False
    """Several sessions may run on one replica at once; otherwise `max_sessions_per_replica` must be 1 (DP-09)."""


_MTP_NAMES = (
    "mtp_output_key",
    "mtp_num_codes",
    "mtp_validity_key",
    "mtp_graph_safe",
    "mtp_disable_graph",
    "mtp_accepts_per_row_generators",
    "mtp_accepts_req_infos",
    "mtp_sample_uniforms",
    "mtp_sample_steps",
    "mtp_sample_vocab_size",
    "mtp_sampling_params",
)


def read_capabilities(model_class: type) -> ModelCapabilities:
    """Return what `model_class` declares; classes that declare nothing get the default record.

    Raises:
        ConfigError: The declaration contradicts itself; the message names the class and every fault.
    """
    found = {name: value for name in _MTP_NAMES if (value := getattr(model_class, name, None)) is not None}
    declared = getattr(model_class, "capabilities", None)
    has_mtp = callable(getattr(model_class, "mtp", None))
    where = f"{model_class.__module__}.{model_class.__qualname__}"
    if isinstance(declared, ModelCapabilities):
        if found:
            raise ConfigError(f"`capabilities` and {sorted(found)} are both declared", where=where, hint="keep one form")
        record = declared
    else:
        record = ModelCapabilities(
            computes_inputs=callable(getattr(model_class, "omni_embed", None)),
            gated_inputs=callable(getattr(model_class, "omni_ingest", None)),
            row_width=getattr(model_class, "row_width", 0),
            mtp=_read_mtp(found, where) if has_mtp or found else None,
            returns_tuple=bool(getattr(model_class, "_returns_tuple", False)),
            native_data_plane=bool(getattr(model_class, "supports_native_mrv2_data_plane", False)),
        )
    faults = []
    if record.mtp is not None and not has_mtp:
        faults.append("it declares a predictor but has no method `mtp`")
    if record.mtp is not None and not record.computes_inputs:
        faults.append("a predictor needs the input methods (`omni_embed`)")
    if record.constrains_sampling and not record.computes_inputs:
        faults.append("constrained sampling needs the input methods (`omni_embed`)")
    if record.gated_inputs and not record.computes_inputs:
        faults.append("gated inputs need the input methods (`omni_embed`)")
    if record.capture is not None and record.computes_inputs:
        faults.append("hidden states are captured of models that do not compute their inputs")
    methods = ["omni_begin", "omni_embed", "omni_end"] if record.computes_inputs else []
    methods += ["omni_ingest"] if record.gated_inputs else []
    methods += ["omni_constrain"] if record.constrains_sampling else []
    methods += ["omni_condition", "omni_record"] if record.mtp is not None else []
    faults += [f"method `{name}` is missing" for name in methods if not callable(getattr(model_class, name, None))]
    if faults:
        raise ConfigError("the declared capabilities do not fit together: " + "; ".join(faults), where=where)
    return record


def _read_mtp(found: dict[str, object], where: str) -> MtpCapability:
    key = found.get("mtp_output_key")
    codes = found.get("mtp_num_codes")
    if not (isinstance(key, str) or (isinstance(key, tuple) and len(key) == 2)):
        raise ConfigError("a predictor needs `mtp_output_key`, a string or a pair of strings", where=where)
    if not isinstance(codes, int) or codes < 1:
        raise ConfigError("a predictor needs `mtp_num_codes`, the size of a frame", where=where)
    uniforms = None
    if found.get("mtp_sample_uniforms"):
        steps, vocab = found.get("mtp_sample_steps"), found.get("mtp_sample_vocab_size")
        if not isinstance(steps, int) or not isinstance(vocab, int):
            raise ConfigError("`mtp_sample_uniforms` needs `mtp_sample_steps` and `mtp_sample_vocab_size`", where=where)
        uniforms = SampleUniforms(steps, vocab)
    sampling = found.get("mtp_sampling_params")
    if sampling is not None and not isinstance(sampling, MtpSampling):
        raise ConfigError("`mtp_sampling_params` must be an MtpSampling", where=where)
    validity = found.get("mtp_validity_key")
    return MtpCapability(
        output_key=key,  # type: ignore[arg-type]
        num_codes=codes,
        validity_key=validity if isinstance(validity, str) else None,
        graph_safe=bool(found.get("mtp_graph_safe")),
        disable_graph=bool(found.get("mtp_disable_graph")),
        per_row_generators=bool(found.get("mtp_accepts_per_row_generators")),
        accepts_req_infos=bool(found.get("mtp_accepts_req_infos")),
        sample_uniforms=uniforms,
        sampling=sampling or MtpSampling(),
    )
