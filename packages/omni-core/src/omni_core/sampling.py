"""Sampling parameters: their names and ranges, how layers of them are merged, and what a pipeline fixes.

The table holds the names of vLLM's SamplingParams without importing vLLM; a contract test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.errors import OmniError, RequestError
from omni_core.suggest import way_out

_INT64 = 2**63


@dataclass(frozen=True)
class _Rule:
    """What one parameter accepts."""

    wants: str
    """For messages: `a number from 0 to 2`."""
    accepts: Callable[[Any], bool]
    nullable: bool = False


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and math.isfinite(value)


def _is_token_key(key: Any) -> bool:
    """Whether a key of a mapping names a token: JSON has strings only."""
    return (_is_int(key) and key >= 0) or (isinstance(key, str) and key.isascii() and key.isdecimal())


def _integer(low: int, high: int | None = None, *, nullable: bool = False) -> _Rule:
    wants = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return _Rule(wants, lambda value: _is_int(value) and value >= low and (high is None or value <= high), nullable)


def _number(low: float, high: float | None = None, *, above: bool = False) -> _Rule:
    lower = f"above {low:g}" if above else f"of at least {low:g}"
    wants = f"a finite number {lower}" + ("" if high is None else f" and at most {high:g}")

    def accepts(value: Any) -> bool:
        if not _is_number(value) or (high is not None and value > high):
            return False
        return value > low if above else value >= low

    return _Rule(wants, accepts)


def _list_of(wants: str, accepts: Callable[[Any], bool]) -> _Rule:
    return _Rule(f"a list of {wants}", lambda value: isinstance(value, (list, tuple)) and all(map(accepts, value)), True)


_FLAG = _Rule("true or false", lambda value: isinstance(value, bool))
_TOKENS = _list_of("token ids", lambda item: _is_int(item) and item >= 0)
_STRINGS = _list_of("strings", lambda item: isinstance(item, str))
_MAPPING = _Rule("a mapping", lambda value: isinstance(value, Mapping), True)
_BIAS = _Rule(
    "a mapping of token ids to numbers from -100 to 100",
    lambda value: (
        isinstance(value, Mapping)
        and all(_is_token_key(key) and _is_number(bias) and -100 <= bias <= 100 for key, bias in value.items())
    ),
    nullable=True,
)
_TOP_K = _Rule("an integer of at least 1, or 0 or -1 for every token", lambda value: _is_int(value) and value >= -1)
_STOP = _Rule("a string or a list of strings", lambda value: isinstance(value, str) or _STRINGS.accepts(value), nullable=True)

SAMPLING_RULES: dict[str, _Rule] = {
    "n": _Rule("1, since a request gives one output", lambda value: _is_int(value) and value == 1),
    "temperature": _number(0),
    "top_p": _number(0, 1, above=True),
    "top_k": _TOP_K,
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, above=True),
    "seed": _integer(-_INT64, _INT64 - 1, nullable=True),
    "max_tokens": _integer(1, nullable=True),
    "min_tokens": _integer(0),
    "stop": _STOP,
    "stop_token_ids": _TOKENS,
    "bad_words": _STRINGS,
    "allowed_token_ids": _TOKENS,
    "logit_bias": _BIAS,
    "ignore_eos": _FLAG,
    "logprobs": _integer(-1, nullable=True),
    "prompt_logprobs": _integer(-1, nullable=True),
    "logprob_token_ids": _TOKENS,
    "flat_logprobs": _FLAG,
    "detokenize": _FLAG,
    "skip_special_tokens": _FLAG,
    "spaces_between_special_tokens": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "extra_args": _MAPPING,
}
"""Accepted parameters by name."""

MTP_RULES: dict[str, _Rule] = {
    "do_sample": _FLAG,
    "temperature": _number(0),
    "top_k": _TOP_K,
    "top_p": _number(0, 1, above=True),
    "repetition_penalty": _number(0, above=True),
}
"""Accepted keys of `extra_args.mtp`, the sampling of a model's predictor."""


def merge_sampling(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the layers as one, later ones winning; `extra_args` and mappings inside it are merged by key (SM-03)."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in (layer or {}).items():
            if name == "extra_args" and isinstance(value, Mapping):
                merged[name] = _merge_mappings(merged.get(name), value)
            else:
                merged[name] = value
    return merged


def _merge_mappings(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below) if isinstance(below, Mapping) else {}
    for name, value in above.items():
        merged[name] = _merge_mappings(merged.get(name), value) if isinstance(value, Mapping) else value
    return merged


def apply_constraints(params: Mapping[str, Any], constraints: Mapping[str, Any]) -> dict[str, Any]:
    """Return `params` with a pipeline's constraints applied: they replace, but `stop_token_ids` extend (SM-01, SM-02)."""
    applied = dict(params)
    for name, value in constraints.items():
        if name == "stop_token_ids":
            applied[name] = _extend(params.get(name) or (), value)
        elif name == "extra_args":
            applied[name] = _merge_mappings(params.get(name), value)
        else:
            applied[name] = value
    return applied


def _extend(present: Iterable[int], required: Iterable[int]) -> list[int]:
    return list(dict.fromkeys((*present, *required)))


def check_sampling(params: Mapping[str, Any], *, where: str, error: type[OmniError] = RequestError) -> None:
    """Check names, types and ranges of sampling parameters.

    Args:
        params: The parameters.
        where: The place, for the message.
        error: The class to raise.

    Raises:
        OmniError: Of class `error`; `param` names the parameter at fault.
    """
    _check(params, SAMPLING_RULES, "", where, error)
    low, high = params.get("min_tokens"), params.get("max_tokens")
    if low is not None and high is not None and low > high:
        raise error(
            f"min_tokens {low} is more than max_tokens {high}", where=where, param="min_tokens", hint="lower min_tokens"
        )
    mtp = (params.get("extra_args") or {}).get("mtp")
    if mtp is None:
        return
    if not isinstance(mtp, Mapping):
        raise error("extra_args.mtp must be a mapping", where=where, param="extra_args.mtp", hint="set do_sample, top_k ...")
    _check(mtp, MTP_RULES, "extra_args.mtp.", where, error)


def _check(params: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str, where: str, error: type[OmniError]) -> None:
    for name, value in params.items():
        rule = rules.get(name)
        if rule is None:
            raise error(
                f"there is no sampling parameter {prefix}{name}",
                where=where,
                param=f"{prefix}{name}",
                hint=way_out(name, rules, "parameters"),
            )
        if value is None and rule.nullable:
            continue
        if not rule.accepts(value):
            raise error(
                f"{prefix}{name} must be {rule.wants}, not {_shown(value)}",
                where=where,
                param=f"{prefix}{name}",
                hint=f"correct {prefix}{name}",
            )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
