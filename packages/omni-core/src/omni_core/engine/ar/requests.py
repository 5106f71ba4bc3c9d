"""From a stage's input to what vLLM takes: sampling parameters, checked against the engine's limits. Runs in the stage host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling
from omni_core.engine.ar.wire import KEY, Extra
from omni_core.engine.vllm_bridge import RequestOutputKind, SamplingParams
from omni_core.errors import ContextLengthError, RequestError
from omni_core.sampling import apply_constraints, check_sampling, merge_sampling
from omni_core.stage import ResolvedStage


def effective_sampling(stage: ResolvedStage, own: Mapping[str, Any], derived: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's sampling parameters: the stage's, below what follows from the input, below the request's own.

    Args:
        stage: The stage; its constraints have the last word.
        own: The request's parameters. They hold the stage's too; a value that differs from the stage's is the request's own.
        derived: `EngineInput.sampling`. Its `stop_token_ids` extend, as a constraint's do: they are how the model ends.

    Raises:
        RequestError: A parameter is unknown, has a wrong value, or is one that this server sets itself.
    """
    where = f"stage {stage.name}"
    chosen = {name: value for name, value in own.items() if name not in stage.sampling or value != stage.sampling[name]}
    ends = {name: value for name, value in derived.items() if name == "stop_token_ids"}
    merged = apply_constraints(merge_sampling(stage.sampling, derived, chosen), ends)
    merged = apply_constraints(merged, stage.topology.sampling_constraints)
    check_sampling(merged, where=where)
    if KEY in (merged.get("extra_args") or {}):
        raise RequestError(f"extra_args.{KEY} is reserved", where=where, param=f"extra_args.{KEY}", hint="leave it out")
    if chosen.get("ignore_eos") and stage.topology.sampling_constraints.get("stop_token_ids"):
        raise RequestError(
            "ignore_eos has no effect: the pipeline's own stop ids end a request",
            where=where,
            param="ignore_eos",
            hint="leave it out, or ask for a length with min_tokens",
        )
    if merged.get("n", 1) != 1:
        raise RequestError("n must be 1", where=where, param="n", hint="send one request for each answer")
    return merged


def limit_tokens(
    stage: ResolvedStage,
    sampling: dict[str, Any],
    own: Mapping[str, Any],
    prompt_len: int,
    max_model_len: int,
    param: str | None = None,
) -> None:
    """Set `max_tokens` to what fits behind the prompt, unless the request asked for more; `param` is the prompt's field.

    Raises:
        ContextLengthError: The prompt alone, or with the `max_tokens` that the request set, is longer than the engine takes.
    """
    where = f"stage {stage.name}"
    room = max_model_len - prompt_len
    if prompt_len < 1:
        raise RequestError("the prompt is empty", where=where, hint="send a text")
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_len} positions and the engine takes {max_model_len} with at least one for the answer",
            where=where,
            param=param,
            hint="shorten the prompt, or raise max_model_len",
        )
    wanted = sampling.get("max_tokens")
    if wanted is not None and wanted > room and own.get("max_tokens") == wanted != stage.sampling.get("max_tokens"):
        raise ContextLengthError(
            f"a prompt of {prompt_len} positions and max_tokens {wanted} are more than the {max_model_len} positions "
            "the engine takes",
            where=where,
            param="max_tokens",
            hint=f"set max_tokens to at most {room}",
        )
    sampling["max_tokens"] = room if wanted is None else min(wanted, room)
    if sampling.get("min_tokens", 0) > sampling["max_tokens"]:
        sampling["min_tokens"] = sampling["max_tokens"]


def sampling_params(
    stage: ResolvedStage, sampling: Mapping[str, Any], extra: Extra | None, *, text: bool, structured: Any = None
) -> Any:
    """Return vLLM's SamplingParams: new tokens only, with our inputs in `extra_args`.

    Args:
        stage: The stage.
        sampling: The parameters by name.
        extra: What the engine core reads of ours.
        text: Whether tokens are turned into text.
        structured: vLLM's StructuredOutputsParams: the form that the text must have.

    Raises:
        RequestError: vLLM refuses the combination.
    """
    values = dict(sampling)
    if structured is not None:
        values["structured_outputs"] = structured
    if extra is not None:
        values["extra_args"] = {**(values.get("extra_args") or {}), KEY: extra}
    if values.get("logit_bias"):
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}
    try:
        return SamplingParams(
            **{**values, "detokenize": text and values.get("detokenize", True)}, output_kind=RequestOutputKind.DELTA
        )
    except (ValueError, TypeError) as error:
        raise RequestError(str(error), where=f"stage {stage.name}", hint="correct the sampling parameters") from error


_STEERED = ("temperature", "top_k", "top_p", "repetition_penalty")
"""Parameters that a sampled token and a predicted frame both have."""


def steer(stage: ResolvedStage, sampling: Mapping[str, Any], mtp: MtpCapability | None) -> dict[str, Any]:
    """Return the parameters with those of the frame under `extra_args["mtp"]` and those of the token where vLLM reads them.

    Raises:
        RequestError: A repetition penalty is asked for that the model does not have.
    """
    steered = dict(sampling)
    if mtp is None:
        return steered
    extra = dict(steered.get("extra_args") or {})
    frame = dict(extra.get("mtp") or {})
    if mtp.token_sampling is not None:
        frame = {name: steered[name] for name in _STEERED if name in steered} | frame
        greedy = {"temperature": 0.0} if steered.get("temperature") == 0 else {}
        steered |= {**mtp.token_sampling, **greedy, "extra_args": {**extra, "mtp": frame}}
    if frame.get("repetition_penalty", 1) != 1 and not mtp.penalises_repetition:
        raise RequestError(
            "the frames of this model have no repetition penalty",
            where=f"stage {stage.name}",
            param="extra_args.mtp.repetition_penalty",
            hint="leave it out, or set it to 1",
        )
    return steered


def drop_unreachable_stops(sampling: dict[str, Any], vocab_size: int) -> None:
    """Leave out ids that end the request but that the model cannot sample.

    vLLM takes `stop_token_ids` for columns of the logits when it enforces `min_tokens`. A column that is not there ends the
    engine, and a pipeline's own ids may be those of a larger vocabulary than this checkpoint's.
    """
    if stops := sampling.get("stop_token_ids"):
        sampling["stop_token_ids"] = [token for token in stops if token < vocab_size]


def mtp_sampling(params: Any, default: MtpSampling) -> MtpSampling:
    """Return how a request's frames are sampled: `extra_args["mtp"]` over the model's default, greedy at temperature 0."""
    chosen = {**asdict(default), **((params.extra_args or {}).get("mtp") or {})}
    chosen["top_k"] = max(chosen["top_k"], 0)
    if params.temperature == 0:
        chosen["do_sample"] = False
    return MtpSampling(**chosen)


def row_width(capabilities: ModelCapabilities, model_config: Any) -> int:
    """Return the width of the rows that a model with gated inputs takes."""
    declared = capabilities.row_width
    if isinstance(declared, str):
        return int(getattr(model_config.hf_config, declared))
    return declared or int(model_config.get_inputs_embeds_size())


def checked_rows(stage: ResolvedStage, rows: Any, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return pushed rows as a tensor [n, width] of the model's dtype.

    They are checked here, because an exception in the worker ends the engine for every request.

    Raises:
        RequestError: They are no rows, have another width, or are not numbers.
    """
    where = f"stage {stage.name}"
    try:
        tensor = rows.detach() if isinstance(rows, torch.Tensor) else torch.tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"rows are no array: {error}", where=where, hint="push an array of floats") from error
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise RequestError(
            f"rows have shape {list(tensor.shape)}, not [n, {width}]", where=where, hint=f"push rows of width {width}"
        )
    if not tensor.is_floating_point():
        raise RequestError(f"rows are {tensor.dtype}, not floats", where=where, hint="push floats")
    return tensor.to(dtype).contiguous()
