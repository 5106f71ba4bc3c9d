from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.model_info import ModelInfo
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.speech import Qwen3TTSSpeech, codec_facts

RATE = 24_000
TEXT = SpeechPrompt(text="Hello")
VOICE = ReferenceAudio(np.zeros(2 * RATE, dtype=np.float32), RATE)
CLONE = replace(TEXT, ref_audio=VOICE, ref_text="The words.")


@pytest.fixture
def speech_of(data_folder: Path, tmp_path: Path) -> Callable[..., Qwen3TTSSpeech]:
    """Return the adapter of a checkpoint with changed facts."""

    def make(task: str, **facts: Any) -> Qwen3TTSSpeech:
        config = json.loads((data_folder / "config.json").read_text())
        config |= {"tts_model_type": task, **facts}
        if task == "base":
            config["speaker_encoder_config"] = {"enc_dim": 48}
        folder = tmp_path / task
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copytree(data_folder / "speech_tokenizer", folder / "speech_tokenizer", ignore=lambda *_: ["model.safetensors"])
        return Qwen3TTSSpeech(ModelInfo(str(folder), folder, config))

    return make


@pytest.fixture
def custom(speech_of: Callable[..., Qwen3TTSSpeech]) -> Qwen3TTSSpeech:
    return speech_of("custom_voice")


@pytest.fixture
def base(speech_of: Callable[..., Qwen3TTSSpeech]) -> Qwen3TTSSpeech:
    return speech_of("base")


@pytest.fixture
def design(speech_of: Callable[..., Qwen3TTSSpeech]) -> Qwen3TTSSpeech:
    return speech_of("voice_design")


def _refused(speech: Qwen3TTSSpeech, prompt: SpeechPrompt) -> RequestError:
    with pytest.raises(RequestError) as caught:
        speech.prepare(prompt)
    return caught.value


def test_traits_come_from_the_checkpoint(custom: Qwen3TTSSpeech) -> None:
    traits = custom.traits

    assert (traits.sample_rate, traits.channels, traits.samples_per_frame) == (24_000, 1, 1920)
    assert traits.voices[0] == "serena"
    assert traits.default_voice == "vivian"
    assert traits.languages[:3] == ("Auto", "Chinese", "English")
    assert traits.task_types == ("CustomVoice",)
    assert not traits.clones


def test_every_golden_request_is_accepted(case: Any, model_info: Callable[[Path], ModelInfo]) -> None:
    speech = Qwen3TTSSpeech(model_info(case.folder))

    prepared = speech.prepare(case.prompt)

    assert prepared.inputs["text"] == case.request["text"]
    assert prepared.inputs["language"] == case.request["language"].lower()
    assert prepared.sampling == {}


@pytest.mark.parametrize(
    "written",
    ["[]", "{", '{"output_sample_rate": "fast", "decode_upsample_rate": null}', '{"output_sample_rate": 0}'],
    ids=["no object", "no JSON", "no numbers", "nothing"],
)
def test_facts_that_the_codec_does_not_say_are_the_published_ones(custom: Qwen3TTSSpeech, written: str) -> None:
    """Its stage reports what is wrong, with the file's name."""
    (custom.checkpoint.folder / "speech_tokenizer" / "config.json").write_text(written)

    assert codec_facts(custom.checkpoint) == {"output_sample_rate": 24_000, "decode_upsample_rate": 1920}


@pytest.mark.parametrize("text", ["", "   ", "\n\t "])
def test_a_text_without_words_is_refused(custom: Qwen3TTSSpeech, text: str) -> None:
    """AP-02."""
    assert _refused(custom, SpeechPrompt(text=text)).param == "input"


def test_a_text_that_is_too_long_is_refused_with_the_limit(custom: Qwen3TTSSpeech) -> None:
    error = _refused(custom, SpeechPrompt(text="a" * 100_000))

    assert error.param == "input"
    assert "20000" in error.message


@pytest.mark.parametrize(
    ("variant", "prompt", "param"),
    [
        ("base", replace(CLONE, task_type="CustomVoice"), "task_type"),
        ("custom_voice", replace(TEXT, task_type="VoiceDesign"), "task_type"),
        ("custom_voice", CLONE, "ref_audio"),
        ("voice_design", replace(TEXT, speaker_embedding=(0.0,) * 48), "speaker_embedding"),
        ("custom_voice", replace(TEXT, ref_text="Words"), "ref_text"),
        ("custom_voice", replace(TEXT, task_type="Opera"), "task_type"),
    ],
)
def test_a_request_of_another_task_is_refused(
    speech_of: Callable[..., Qwen3TTSSpeech], variant: str, prompt: SpeechPrompt, param: str
) -> None:
    """AP-02: references mean Base, and the checkpoint's variant must equal the task."""
    error = _refused(speech_of(variant), prompt)

    assert error.param == param
    assert "serve a" in error.hint


def test_the_task_is_matched_without_case(custom: Qwen3TTSSpeech) -> None:
    assert custom.prepare(replace(TEXT, task_type="customvoice")).inputs["text"] == "Hello"


@pytest.mark.parametrize(
    ("voice", "expected"), [("Ryan", "ryan"), ("ONO_ANNA", "ono_anna"), (None, "vivian"), ("default", "vivian")]
)
def test_voices_are_matched_without_case(custom: Qwen3TTSSpeech, voice: str | None, expected: str) -> None:
    assert custom.prepare(replace(TEXT, voice=voice)).inputs["voice"] == expected


def test_an_unknown_voice_is_refused_with_the_known_ones(custom: Qwen3TTSSpeech) -> None:
    error = _refused(custom, replace(TEXT, voice="alloy"))

    assert error.param == "voice"
    assert "'alloy'" in error.message
    assert "vivian" in error.hint


def test_a_voice_is_needed_where_there_is_no_default(speech_of: Callable[..., Qwen3TTSSpeech], data_folder: Path) -> None:
    talker = json.loads((data_folder / "config.json").read_text())["talker_config"]
    talker["spk_id"].pop("vivian")

    error = _refused(speech_of("custom_voice", talker_config=talker), TEXT)

    assert error.param == "voice"
    assert "needs a voice" in error.message


def test_a_voice_has_no_effect_on_other_variants_but_the_placeholder_is_let_through(design: Qwen3TTSSpeech) -> None:
    prompt = replace(TEXT, instructions="calm")

    assert design.prepare(replace(prompt, voice="Default")).inputs["voice"] is None
    assert _refused(design, replace(prompt, voice="ryan")).param == "voice"


@pytest.mark.parametrize(("language", "expected"), [(None, "auto"), ("ENGLISH", "english"), ("Auto", "auto")])
def test_languages_are_matched_without_case(custom: Qwen3TTSSpeech, language: str | None, expected: str) -> None:
    assert custom.prepare(replace(TEXT, language=language)).inputs["language"] == expected


@pytest.mark.parametrize("language", ["Klingon", "beijing_dialect"])
def test_an_unknown_language_is_refused_with_the_known_ones(custom: Qwen3TTSSpeech, language: str) -> None:
    error = _refused(custom, replace(TEXT, language=language))

    assert error.param == "language"
    assert "English" in error.hint


def test_instructions_have_a_limit(custom: Qwen3TTSSpeech) -> None:
    assert custom.prepare(replace(TEXT, instructions="a" * 500)).inputs["instructions"] == "a" * 500
    assert _refused(custom, replace(TEXT, instructions="a" * 501)).param == "instructions"


def test_voice_design_needs_instructions_but_takes_an_empty_string(design: Qwen3TTSSpeech) -> None:
    assert _refused(design, TEXT).param == "instructions"
    assert design.prepare(replace(TEXT, instructions="")).inputs["instructions"] is None


def test_small_custom_voice_models_refuse_instructions(speech_of: Callable[..., Qwen3TTSSpeech]) -> None:
    error = _refused(speech_of("custom_voice", tts_model_size="0b6"), replace(TEXT, instructions="happy"))

    assert error.param == "instructions"
    assert "no effect" in error.message


def test_values_that_the_talker_replaces_hold_for_requests(
    data_folder: Path, stage_of: Callable[..., ResolvedStage], model_info: Callable[[Path], ModelInfo]
) -> None:
    prompt = replace(TEXT, voice="vivian", instructions="happy")

    def adapter(size: str) -> Qwen3TTSSpeech:
        stages = (stage_of(data_folder, 0, engine_args={"hf_overrides": {"tts_model_size": size}}),)
        return Qwen3TTSSpeech(model_info(data_folder), {"stages": stages})

    assert adapter("1b7").prepare(prompt).inputs["instructions"] == "happy"
    assert _refused(adapter("0b6"), prompt).param == "instructions"


def test_the_whole_text_is_in_the_prompt_except_for_clones(custom: Qwen3TTSSpeech, base: Qwen3TTSSpeech) -> None:
    assert custom.prepare(TEXT).inputs["non_streaming_mode"] is True
    assert base.prepare(CLONE).inputs["non_streaming_mode"] is False
    assert base.prepare(replace(CLONE, non_streaming_mode=True)).inputs["non_streaming_mode"] is True


def test_a_clone_carries_its_reference(base: Qwen3TTSSpeech) -> None:
    inputs = base.prepare(CLONE).inputs

    assert inputs["ref_audio"].dtype == np.float32
    assert (inputs["ref_sample_rate"], inputs["ref_text"], inputs["x_vector_only"]) == (RATE, "The words.", False)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"ref_audio": None}, "ref_audio"),
        ({"ref_text": None}, "ref_text"),
        ({"ref_text": "  "}, "ref_text"),
        ({"x_vector_only_mode": True}, "ref_text"),
        ({"ref_audio": ReferenceAudio(np.zeros(RATE // 2, dtype=np.float32), RATE)}, "ref_audio"),
        ({"ref_audio": ReferenceAudio(np.zeros(31 * RATE, dtype=np.float32), RATE)}, "ref_audio"),
        ({"ref_audio": ReferenceAudio(np.full(2 * RATE, np.nan, dtype=np.float32), RATE)}, "ref_audio"),
        ({"ref_audio": ReferenceAudio(np.zeros((RATE, 2), dtype=np.float32), RATE)}, "ref_audio"),
        ({"speaker_embedding": (0.0,) * 48}, "ref_audio"),
        ({"instructions": "happy"}, "instructions"),
        ({"voice": "ryan"}, "voice"),
    ],
    ids=[
        "no audio",
        "no words",
        "blank words",
        "words without effect",
        "too short",
        "too long",
        "not finite",
        "stereo",
        "both kinds of reference",
        "instructions",
        "voice",
    ],
)
def test_a_reference_that_cannot_be_used_is_refused(base: Qwen3TTSSpeech, changes: dict[str, Any], param: str) -> None:
    """AP-02."""
    assert _refused(base, replace(CLONE, **changes)).param == param


def test_an_embedding_alone_needs_no_words(base: Qwen3TTSSpeech) -> None:
    inputs = base.prepare(replace(TEXT, speaker_embedding=(0.5,) * 48)).inputs

    assert inputs["speaker_embedding"].shape == (48,)
    assert "ref_audio" not in inputs


@pytest.mark.parametrize(
    "values",
    [(0.0,) * 47, (), (float("inf"),) * 48, (1e300,) * 48, (10**400,) * 48, ("loud",) * 48, ((0.0,),) * 48],
    ids=["narrow", "empty", "not finite", "too large", "far too large", "words", "two dimensions"],
)
def test_an_embedding_that_the_talker_cannot_add_is_refused(base: Qwen3TTSSpeech, values: tuple[Any, ...]) -> None:
    error = _refused(base, replace(TEXT, speaker_embedding=values))

    assert error.param == "speaker_embedding"
    assert "48" in error.message


def test_an_embedding_cannot_be_cloned_in_context(base: Qwen3TTSSpeech) -> None:
    prompt = replace(TEXT, speaker_embedding=(0.5,) * 48, x_vector_only_mode=False)

    assert _refused(base, prompt).param == "x_vector_only_mode"


def test_limits_and_seed_become_sampling_parameters_of_the_talker(custom: Qwen3TTSSpeech) -> None:
    prepared = custom.prepare(replace(TEXT, max_new_tokens=4096, seed=-5, initial_codec_chunk_frames=0))

    assert prepared.sampling == {0: {"max_tokens": 4096, "seed": -5}}
    assert prepared.inputs["initial_codec_chunk_frames"] == 0


def test_a_limit_of_one_frame_lowers_the_least_number_of_frames(custom: Qwen3TTSSpeech) -> None:
    assert custom.prepare(replace(TEXT, max_new_tokens=1)).sampling == {0: {"max_tokens": 1, "min_tokens": 1}}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 4097},
        {"max_new_tokens": True},
        {"seed": 2**63},
        {"initial_codec_chunk_frames": -1},
        {"extra": {"ambient_sound": "rain"}},
    ],
)
def test_a_number_out_of_range_or_an_unknown_field_is_refused(custom: Qwen3TTSSpeech, changes: dict[str, Any]) -> None:
    name = next(iter(changes.get("extra", changes)))

    assert _refused(custom, replace(TEXT, **changes)).param == name


def test_limit_of_the_deployment_replaces_the_models(design: Qwen3TTSSpeech) -> None:
    limited = Qwen3TTSSpeech(design.model, {"tts_max_instructions_length": 4, "session_mode": "turn"})

    assert (design.traits.max_instructions_chars, limited.traits.max_instructions_chars) == (500, 4)
    error = _refused(limited, SpeechPrompt("hello", instructions="a low voice"))
    assert error.param == "instructions"
    assert limited.prepare(SpeechPrompt("hello", instructions="low")).inputs["instructions"] == "low"
