"""What every `SpeechAdapter` checks in a prompt, against its traits. Each check raises a RequestError that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from omni_core.errors import RequestError
from omni_core.speech import ReferenceAudio, SpeechPrompt, SpeechTraits

_MAX_SEED = 2**63 - 1
_NOT_OPTIONAL = frozenset({"text", "extra"})


def check_text(text: str, traits: SpeechTraits) -> None:
    """Check that there is something to speak, and not too much."""
    _check_characters(text, "input")
    if not text.strip():
        raise RequestError("there is no text to speak", param="input", hint="send at least one word")
    if len(text) > (limit := traits.max_text_chars):
        raise RequestError(
            f"the text has {len(text)} characters, but at most {limit} are accepted",
            param="input",
            hint="send it in several requests",
        )


def _check_characters(text: str, name: str) -> None:
    """Refuse what is no text: half a surrogate pair, and NUL, which ends strings in other languages."""
    if "\0" in text:
        raise RequestError(f"{name!r} contains a NUL character", param=name, hint="leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"{name!r} has half of a surrogate pair at character {error.start}"
        raise RequestError(what, param=name, hint="send whole characters") from error


def check_fields(prompt: SpeechPrompt, traits: SpeechTraits, model: str) -> None:
    """Check that every field which is set has an effect, and that texts are texts.

    Args:
        prompt: The prompt.
        traits: `accepts` names the fields with an effect.
        model: What the message calls the model, such as `VoiceDesign model`.
    """
    for name in (field.name for field in fields(prompt) if field.name != "text"):
        if isinstance(value := getattr(prompt, name), str):
            _check_characters(value, name)
    accepted = ", ".join(sorted(traits.accepts))
    for name in (field.name for field in fields(prompt) if field.name not in _NOT_OPTIONAL | traits.accepts):
        value = getattr(prompt, name)
        if value is None or _is_placeholder(name, value):
            continue
        hint = f"leave it out; accepted are {accepted}"
        raise RequestError(f"{name!r} has no effect with this {model}", param=name, hint=hint)
    for name in prompt.extra:
        raise RequestError(f"{name!r} has no effect with this model", param=name, hint="leave it out")


def _is_placeholder(name: str, value: Any) -> bool:
    """Whether a client may send this because its library insists on the field."""
    return (name == "voice" and str(value).lower() == "default") or (name == "instructions" and not value)


def check_instructions(instructions: str | None, traits: SpeechTraits) -> str | None:
    """Return the instructions, None for empty ones."""
    if instructions and len(instructions) > (limit := traits.max_instructions_chars):
        raise RequestError(
            f"the instructions have {len(instructions)} characters, but at most {limit} are accepted",
            param="instructions",
            hint="shorten them",
        )
    return instructions or None


def check_reference(audio: ReferenceAudio, traits: SpeechTraits) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the samples of a reference, float32."""
    samples, rate = audio.samples, audio.sample_rate
    if samples.dtype.kind != "f":
        hint = "divide samples of 16 bits by 32768"
        raise RequestError(f"the reference audio has samples of {samples.dtype}, not in [-1, 1]", param="ref_audio", hint=hint)
    channels = 1 if samples.ndim == 1 else samples.shape[-1]
    if rate <= 0 or samples.ndim not in (1, 2) or not 1 <= channels <= traits.reference_channels:
        most = traits.reference_channels
        form = "mono" if most == 1 else f"mono or [samples, channels] with at most {most} channels"
        raise RequestError(f"the reference audio must be {form} with a positive sample rate", param="ref_audio")
    seconds = len(samples) / rate
    low, high = traits.min_reference_s, traits.max_reference_s
    if not low <= seconds <= high:
        raise RequestError(
            f"the reference audio is {seconds:.1f} s long, but must have {low:g} to {high:g} s",
            param="ref_audio",
            hint="cut it, or take a longer one",
        )
    if not np.isfinite(samples).all():
        raise RequestError("the reference audio has samples that are no finite numbers", param="ref_audio")
    return np.ascontiguousarray(samples, dtype=np.float32)


def whole_number(value: int | None, name: str, low: int, high: int) -> int | None:
    """Return a number that must be whole and in [low, high], or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name!r} must be a whole number from {low} to {high}, not {value!r}", param=name)
    return value


def limits(prompt: SpeechPrompt, traits: SpeechTraits) -> Mapping[str, Any]:
    """Return the sampling parameters that follow from `max_new_tokens` and `seed`."""
    most = whole_number(prompt.max_new_tokens, "max_new_tokens", 1, traits.max_new_tokens)
    seed = whole_number(prompt.seed, "seed", -_MAX_SEED - 1, _MAX_SEED)
    return {name: value for name, value in (("max_tokens", most), ("seed", seed)) if value is not None}
