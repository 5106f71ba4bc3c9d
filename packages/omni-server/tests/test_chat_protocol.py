"""The body of a conversation: what goes where, and that vLLM knows the fields under the same names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_core.errors import RequestError
from omni_core.sampling import SAMPLING_RULES
from omni_server import chat_protocol
from omni_server.chat_protocol import ChatRequest, stage_sampling
from omni_server.fake_chat import SPEAKING, WRITING
from omni_server.protocol import INT64_MAX, parse


def make(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def test_every_sampling_field_is_a_sampling_parameter_of_the_engine() -> None:
    assert set(chat_protocol._SAMPLING) <= set(SAMPLING_RULES)


def test_every_field_is_used_somewhere() -> None:
    known = {*chat_protocol._SAMPLING, *chat_protocol._CONVERSATION, *chat_protocol._LABELS}
    own = {
        *("messages", "model", "modalities", "audio", "stream", "stream_options", "n", "omni", "sampling_params_list"),
        *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "mm_processor_kwargs", "use_audio_in_video"),
        *("store", "service_tier"),  # taken with the one value that has no effect
    }

    assert set(ChatRequest.model_fields) == known | own


@pytest.mark.engine
def test_what_the_renderer_reads_are_fields_of_vllms_request() -> None:
    pytest.importorskip("vllm", reason="the fields are vLLM's")
    from omni_core.engine.vllm_bridge import ChatCompletionRequest

    fields = set(ChatCompletionRequest.model_fields)
    assert {*chat_protocol._CONVERSATION, "mm_processor_kwargs", "messages"} <= fields
    assert set(chat_protocol._SAMPLING) <= fields


def test_the_two_names_of_the_limit_are_one() -> None:
    assert make(max_tokens=5).sampling() == make(max_completion_tokens=5).sampling() == {"max_tokens": 5}
    assert make(max_tokens=5, max_completion_tokens=5).sampling() == {"max_tokens": 5}


def test_log_probabilities_without_a_number_are_those_of_the_tokens() -> None:
    assert make(logprobs=True).sampling() == {"logprobs": 0}
    assert make(logprobs=True, top_logprobs=3).sampling() == {"logprobs": 3}
    assert make(logprobs=False).sampling() == {}


def test_a_message_that_is_continued_gets_no_new_turn() -> None:
    assert make(continue_final_message=True).conversation([], None)["add_generation_prompt"] is False
    assert "add_generation_prompt" not in make().conversation([], None)


@pytest.mark.parametrize("fields", [{"use_audio_in_video": True}, {"mm_processor_kwargs": {"use_audio_in_video": True}}])
def test_the_sound_of_videos_can_be_asked_for_in_two_ways(fields: dict[str, Any]) -> None:
    assert make(**fields).conversation([], None)["mm_processor_kwargs"] == {"use_audio_in_video": True}


def test_seeds_of_further_choices_stay_numbers_of_64_bits() -> None:
    seeds = [stage_sampling(make(seed=INT64_MAX, n=3), SPEAKING, choice)[0]["seed"] for choice in range(3)]

    assert seeds == [INT64_MAX, INT64_MAX - 1, INT64_MAX - 2]
    assert stage_sampling(make(), WRITING) == [{}]


def test_speech_needs_a_model_that_speaks() -> None:
    assert make(modalities=["audio"]).speaks(SPEAKING)
    assert not make(modalities=["text"]).speaks(SPEAKING)
    assert not make().speaks(SPEAKING)
    with pytest.raises(RequestError) as caught:
        make(modalities=["audio"]).speaks(WRITING)
    assert caught.value.param == "modalities"


@pytest.mark.parametrize(("given", "stream", "name"), [(None, False, "wav"), (None, True, "pcm"), ("pcm16", False, "pcm")])
def test_the_format_has_a_default_for_files_and_for_streams(given: str | None, stream: bool, name: str) -> None:
    assert make(modalities=["audio"], audio={"format": given}, stream=stream).audio_format() == name


def test_an_unknown_field_of_an_object_is_named() -> None:
    """B22."""
    with pytest.raises(RequestError, match="`audio`: unknown field `sample_rate`") as refused:
        make(audio={"format": "wav", "sample_rate": 8000})

    assert refused.value.param == "audio"
