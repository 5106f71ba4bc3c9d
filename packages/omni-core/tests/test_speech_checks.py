from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.speech import ReferenceAudio, SpeechPrompt, SpeechTraits
from omni_core.speech_checks import (
    check_fields,
    check_instructions,
    check_reference,
    check_text,
    limits,
    whole_number,
)

TRAITS = SpeechTraits(
    sample_rate=8000, channels=1, accepts=frozenset({"seed", "quality"}), max_text_chars=5, max_instructions_chars=3
)


@pytest.mark.parametrize(("text", "message"), [(" \n", "no text to speak"), ("123456", "6 characters, but at most 5")])
def test_a_text_must_say_something_and_not_too_much(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_text(text, TRAITS)

    assert caught.value.param == "input"


@pytest.mark.parametrize("field", ["voice", "ambient_sound", "ref_audio", "x_vector_only_mode", "duration_seconds"])
def test_a_field_without_effect_is_refused_by_name(field: str) -> None:
    prompt: Any = SpeechPrompt("Hi", **{field: 0})

    with pytest.raises(RequestError, match=f"'{field}' has no effect with this tiny model") as caught:
        check_fields(prompt, TRAITS, "tiny model")

    assert caught.value.param == field
    assert caught.value.hint == "leave it out; accepted are quality, seed"


def test_accepted_fields_and_placeholders_pass() -> None:
    check_fields(SpeechPrompt("Hi", seed=1, quality="good", voice="Default", instructions=""), TRAITS, "tiny model")


def test_unknown_extra_parameters_are_refused() -> None:
    with pytest.raises(RequestError, match="'pitch' has no effect"):
        check_fields(SpeechPrompt("Hi", extra={"pitch": 1}), TRAITS, "tiny model")


def test_empty_instructions_are_none_and_long_ones_an_error() -> None:
    assert check_instructions("", TRAITS) is None
    assert check_instructions("abc", TRAITS) == "abc"
    with pytest.raises(RequestError, match="4 characters, but at most 3"):
        check_instructions("abcd", TRAITS)


@pytest.mark.parametrize(
    ("samples", "rate", "channels"),
    [
        (np.zeros(8000), 0, 1),
        (np.zeros((8000, 2)), 8000, 1),
        (np.zeros((8000, 3)), 8000, 2),
        (np.zeros((8000, 1, 1)), 8000, 2),
        (np.zeros(100), 8000, 1),
        (np.full(8000, np.nan), 8000, 1),
    ],
    ids=["rate", "stereo for mono", "too many channels", "dimensions", "short", "not a number"],
)
def test_a_recording_that_cannot_be_used_is_refused(samples: Any, rate: int, channels: int) -> None:
    traits = SpeechTraits(sample_rate=8000, channels=1, reference_channels=channels)

    with pytest.raises(RequestError) as caught:
        check_reference(ReferenceAudio(samples, rate), traits)

    assert caught.value.param == "ref_audio"


def test_whole_numbers_are_no_samples_and_the_way_out_is_said() -> None:
    traits = SpeechTraits(sample_rate=8000, channels=1)

    with pytest.raises(RequestError, match="samples of int16") as caught:
        check_reference(ReferenceAudio(np.full(16_000, 20_000, np.int16), 8000), traits)

    assert caught.value.param == "ref_audio"
    assert caught.value.hint == "divide samples of 16 bits by 32768"


@pytest.mark.parametrize("shape", [(8000,), (8000, 1), (8000, 2)])
def test_recordings_come_with_as_many_channels_as_the_model_can_use(shape: tuple[int, ...]) -> None:
    traits = SpeechTraits(sample_rate=8000, channels=2, reference_channels=2)

    found = check_reference(ReferenceAudio(np.ones(shape), 8000), traits)

    assert (found.shape, found.dtype) == (shape, np.float32)


@pytest.mark.parametrize("value", [-1, 11, True, 1.0, "3"])
def test_a_number_must_be_whole_and_in_its_range(value: Any) -> None:
    with pytest.raises(RequestError, match="'n' must be a whole number from 0 to 10"):
        whole_number(value, "n", 0, 10)


def test_limits_become_sampling_parameters() -> None:
    assert limits(SpeechPrompt("Hi", max_new_tokens=7, seed=-3), TRAITS) == {"max_tokens": 7, "seed": -3}
    assert limits(SpeechPrompt("Hi"), TRAITS) == {}
