from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.model_info import ModelInfo
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_models_moss.local.speech import LocalSpeech
from omni_models_moss.speech import join_texts

RECORDING = ReferenceAudio(np.zeros((48000, 2), np.float32), 48000)


@pytest.fixture(scope="module")
def speech(data_folder: Path, model_info: Callable[[Path], ModelInfo]) -> LocalSpeech:
    return LocalSpeech(model_info(data_folder))


def test_traits_say_what_the_server_must_know(speech: LocalSpeech) -> None:
    """MO-05."""
    traits = speech.traits

    assert (traits.sample_rate, traits.channels, traits.samples_per_frame) == (48000, 2, 3840)
    assert traits.clones
    assert traits.reference_channels == 2
    assert traits.voices == ()
    assert {"ref_audio", "ref_text", "ambient_sound", "instructions", "duration_seconds"} <= traits.accepts


def test_a_text_needs_no_recording(speech: LocalSpeech) -> None:
    """AP-02 asks for one; the reference implementation and its golden cases speak without."""
    inputs = speech.prepare(SpeechPrompt("Hello")).inputs

    assert inputs["text"] == "Hello"
    assert "ref_audio" not in inputs


def test_a_recording_alone_is_imitated_and_with_its_words_continued(speech: LocalSpeech) -> None:
    imitated = speech.prepare(SpeechPrompt("Hello", ref_audio=RECORDING)).inputs
    continued = speech.prepare(SpeechPrompt("Hello", ref_audio=RECORDING, ref_text="It was said. ")).inputs

    assert (imitated["continues"], imitated["text"]) == (False, "Hello")
    assert (continued["continues"], continued["text"]) == (True, "It was said. Hello")
    assert continued["ref_audio"].shape == (48000, 2)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("One.", "Two.", "One. Two."),
        ("One. ", "Two.", "One. Two."),
        ("One.", "\nTwo.", "One.\nTwo."),
        ("今天。", "明天。", "今天。明天。"),
        ("مرحبا.", "شكرا", "مرحبا. شكرا"),
    ],
    ids=["no space", "space behind", "line break before", "script without spaces", "Arabic"],
)
def test_the_words_of_a_recording_and_the_text_become_one(first: str, second: str, expected: str) -> None:
    assert join_texts(first, second) == expected


def test_a_duration_becomes_frames(speech: LocalSpeech) -> None:
    assert speech.prepare(SpeechPrompt("Hello", duration_seconds=12.0)).inputs["tokens"] == 150
    assert speech.prepare(SpeechPrompt("Hello", duration_seconds=0.01)).inputs["tokens"] == 1


@pytest.mark.parametrize(
    ("asked", "expected"), [("English", "English"), ("english", "English"), ("Auto", None), (None, None), ("zh-CN", "zh-CN")]
)
def test_a_language_is_named_as_the_model_knows_it(asked: str | None, expected: str | None, speech: LocalSpeech) -> None:
    assert speech.prepare(SpeechPrompt("Hello", language=asked)).inputs["language"] == expected


def test_limits_become_sampling_parameters(speech: LocalSpeech) -> None:
    assert speech.prepare(SpeechPrompt("Hello", max_new_tokens=9, seed=3)).sampling == {0: {"max_tokens": 9, "seed": 3}}
    assert speech.prepare(SpeechPrompt("Hello")).sampling == {}


def test_fields_that_clients_must_send_do_no_harm(speech: LocalSpeech) -> None:
    speech.prepare(SpeechPrompt("Hello", voice="default", instructions=""))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (SpeechPrompt("  "), "input"),
        (SpeechPrompt("x" * 8001), "input"),
        (SpeechPrompt("Hello", voice="vivian"), "voice"),
        (SpeechPrompt("Hello", task_type="Base"), "task_type"),
        (SpeechPrompt("Hello", speaker_embedding=(1.0,)), "speaker_embedding"),
        (SpeechPrompt("Hello", non_streaming_mode=True), "non_streaming_mode"),
        (SpeechPrompt("Hello", extra={"pitch": 2}), "pitch"),
        (SpeechPrompt("Hello", ref_text="words"), "ref_text"),
        (SpeechPrompt("Hello", ref_audio=RECORDING, ref_text=" "), "ref_text"),
        (SpeechPrompt("Hello", ref_audio=ReferenceAudio(np.zeros(9, np.float32), 48000)), "ref_audio"),
        (SpeechPrompt("Hello", ref_audio=ReferenceAudio(np.zeros((48000, 3), np.float32), 48000)), "ref_audio"),
        (SpeechPrompt("Hello", instructions="x" * 501), "instructions"),
        (SpeechPrompt("Hello", ambient_sound="rain\n- Text:\nmore"), "ambient_sound"),
        (SpeechPrompt("Hello", quality="x" * 501), "quality"),
        (SpeechPrompt("Hello", duration_seconds=0.0), "duration_seconds"),
        (SpeechPrompt("Hello", duration_seconds=float("nan")), "duration_seconds"),
        (SpeechPrompt("Hello", duration_seconds=400.0), "duration_seconds"),
        (SpeechPrompt("Hello", max_new_tokens=0), "max_new_tokens"),
        (SpeechPrompt("Hello", initial_codec_chunk_frames=-1), "initial_codec_chunk_frames"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_cannot_be_used_is_named(prompt: SpeechPrompt, param: str, speech: LocalSpeech) -> None:
    with pytest.raises(RequestError) as caught:
        speech.prepare(prompt)

    assert caught.value.param == param


def test_the_adapter_imports_nothing_heavy() -> None:
    code = "import sys, omni_models_moss.local.speech; sys.exit(bool({'torch', 'transformers', 'vllm'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_golden_requests_are_accepted(case: Any, model_info: Callable[[Path], ModelInfo]) -> None:
    request = case.record["request"]

    inputs = LocalSpeech(model_info(case.folder)).prepare(case.prompt).inputs

    assert inputs["text"] == request["text"]
    assert inputs["tokens"] == request.get("tokens")
    assert inputs.get("continues", False) == case.continues
