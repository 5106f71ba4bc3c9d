"""POST /v1/chat/completions against a scripted engine: whole answers, what reaches the engine, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.speech import SpeechPrompt
from omni_server import streaming
from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.encoders import to_pcm16
from omni_server.fake_chat import CHUNKS, FRAME, SPEAKING, WRITING, tone
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
ANSWER = "Hello there, friend."
SPOKEN = to_pcm16(np.concatenate([tone(index) for index in range(CHUNKS)])).tobytes()
BOTH = ["text", "audio"]


class TestText:
    """Whole answers in text."""

    async def test_the_answer_has_openais_shape_and_no_other_stage_is_asked(self, chatty: Any, talking: FakeEngine) -> None:
        answer = (await chatty.chat()).json()

        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "org/fake-tts"
        assert talking.wanted == [("text",)]
        assert "voice" not in talking.prompts[0]["chat"]

    async def test_usage_counts_the_prompt_by_kind_and_the_answer(self, chatty: Any) -> None:
        usage = (await chatty.chat()).json()["usage"]

        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 3, 14)
        assert usage["prompt_tokens_details"]["audio_tokens"] == 4
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2
        assert usage["completion_tokens_details"] == {"text_tokens": 3, "audio_tokens": 0, "reasoning_tokens": 0}

    async def test_calls_of_tools_are_whole_and_say_so(self, chatty: Any) -> None:
        (choice,) = (await chatty.chat("call")).json()["choices"]

        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"] == [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        ]
        assert choice["finish_reason"] == "tool_calls"

    async def test_reasoning_is_apart_from_the_answer(self, chatty: Any) -> None:
        (choice,) = (await chatty.chat("think")).json()["choices"]

        assert choice["message"]["reasoning"] == "Hm. "
        assert choice["message"]["content"] == ANSWER

    async def test_log_probabilities_are_those_of_the_stage(self, chatty: Any) -> None:
        (choice,) = (await chatty.chat(logprobs=True, top_logprobs=0)).json()["choices"]

        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Hello", " there,"]

    async def test_several_answers_are_requests_with_seeds_of_their_own(self, chatty: Any, talking: FakeEngine) -> None:
        answer = (await chatty.chat(n=3, seed=7)).json()

        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert {choice["message"]["content"] for choice in answer["choices"]} == {ANSWER}
        assert sorted(sampling[0]["seed"] for sampling in talking.sampling) == [7, 8, 9]
        assert len(set(talking.ids)) == 3
        assert answer["usage"]["prompt_tokens"] == 11
        assert answer["usage"]["completion_tokens"] == 9

    async def test_several_answers_differ_where_no_seed_is_given(self, chatty: Any, talking: FakeEngine) -> None:
        """A deploy file may fix a seed."""
        await chatty.chat(n=3)

        seeds = [sampling[0].get("seed") for sampling in talking.sampling]
        assert len(set(seeds)) == 3

    async def test_one_that_fails_of_several_ends_the_others(self, chatty: Any, talking: FakeEngine) -> None:
        response = await chatty.chat("fail", n=2)

        assert response.status_code == 503
        assert len(talking.aborted) >= 1

    async def test_a_limit_is_told(self, chatty: Any) -> None:
        """E02."""
        assert (await chatty.chat("long")).json()["choices"][0]["finish_reason"] == "length"


class TestSampling:
    """What reaches the stages (E03)."""

    async def test_fields_go_to_the_stage_that_writes_and_the_seed_to_all(self, chatty: Any, talking: FakeEngine) -> None:
        await chatty.chat(max_tokens=5, temperature=0.5, top_p=0.9, stop=["x"], seed=3, logprobs=True, top_logprobs=2, top_k=4)

        first, *others = talking.sampling[0]
        assert first == {
            "max_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["x"],
            "seed": 3,
            "logprobs": 2,
            "top_k": 4,
        }
        assert others == [{"seed": 3}, {"seed": 3}]

    async def test_nothing_is_sent_that_was_not_given(self, chatty: Any, talking: FakeEngine) -> None:
        await chatty.chat(temperature=None, seed=None)

        assert talking.sampling == [[{}, {}, {}]]

    async def test_parameters_of_stages_are_over_the_bodys_own(self, chatty: Any, talking: FakeEngine) -> None:
        given = [{"temperature": 0.1}, {"top_k": 3}, None]

        await chatty.chat(temperature=1.0, seed=2, sampling_params_list=given)

        assert talking.sampling == [[{"temperature": 0.1, "seed": 2}, {"seed": 2, "top_k": 3}, {"seed": 2}]]

    async def test_there_must_be_one_entry_for_each_stage(self, chatty: Any) -> None:
        message = await chatty.chat_refused("sampling_params_list", sampling_params_list=[{}])

        assert "3 stages" in message

    async def test_what_says_how_to_write_goes_to_the_renderer(self, chatty: Any, talking: FakeEngine) -> None:
        tool = {"type": "function", "function": {"name": "f"}}

        await chatty.chat(tools=[tool], tool_choice="auto", response_format={"type": "json_object"}, use_audio_in_video=True)

        body = talking.prompts[0]["chat"]
        assert body["tools"] == [tool]
        assert body["tool_choice"] == "auto"
        assert body["response_format"] == {"type": "json_object"}
        assert body["mm_processor_kwargs"] == {"use_audio_in_video": True}
        assert "temperature" not in body


class TestSpeech:
    """Whole answers with audio."""

    @pytest.mark.parametrize(("voice", "chosen"), [("bob", "Bob"), ({"id": "ADA"}, "Ada"), (None, "Ada")])
    async def test_audio_has_its_transcript_and_the_voice_asked_for(
        self, voice: Any, chosen: str, chatty: Any, talking: FakeEngine, wav_reader: Any
    ) -> None:
        answer = (await chatty.chat(modalities=BOTH, audio={"voice": voice, "format": "wav"})).json()

        (choice,) = answer["choices"]
        message = choice["message"]
        assert message["content"] is None
        assert message["audio"]["transcript"] == ANSWER
        assert message["audio"]["id"].startswith("audio_")
        assert message["audio"]["expires_at"] == answer["created"] + 24 * 3600
        rate, channels, samples = wav_reader(base64.b64decode(message["audio"]["data"]))
        assert (rate, channels, samples.tobytes()) == (24_000, 1, SPOKEN)
        assert talking.prompts[0]["chat"]["voice"] == chosen
        assert talking.wanted == [("text", "audio")]

    @pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
    async def test_every_format_can_be_had_whole(self, name: str, chatty: Any) -> None:
        """B22: the count of samples is the model's."""
        answer = (await chatty.chat(modalities=BOTH, audio={"format": name})).json()

        data = base64.b64decode(answer["choices"][0]["message"]["audio"]["data"])
        assert (data == SPOKEN) is (name == "pcm16")
        assert len(data) > 100

    async def test_an_audio_token_is_a_frame(self, chatty: Any) -> None:
        usage = (await chatty.chat(modalities=BOTH)).json()["usage"]

        frames = len(SPOKEN) // 2 // FRAME
        assert usage["completion_tokens_details"]["audio_tokens"] == frames == 6
        assert usage["completion_tokens"] == 3 + frames

    async def test_a_model_that_says_nothing_gives_text_and_a_valid_empty_file(self, chatty: Any, wav_reader: Any) -> None:
        """E04: a reply of one token, or a talker that ends before its first frame."""
        (choice,) = (await chatty.chat("mute", modalities=BOTH, audio={"format": "wav"})).json()["choices"]

        assert choice["message"]["audio"]["transcript"] == "Hello"
        assert len(wav_reader(base64.b64decode(choice["message"]["audio"]["data"]))[2]) == 0
        assert choice["finish_reason"] == "stop"

    async def test_audio_that_is_cut_off_says_so(self, chatty: Any) -> None:
        (choice,) = (await chatty.chat("long", modalities=BOTH)).json()["choices"]

        assert choice["finish_reason"] == "length"

    async def test_modality_style_has_a_choice_for_each(self, chatty: Any) -> None:
        answer = (await chatty.chat(modalities=BOTH, omni={"delta_style": "modality"})).json()

        text, audio = answer["choices"]
        assert (text["index"], text["message"]["content"]) == (0, ANSWER)
        assert (audio["index"], audio["message"]["content"], audio["message"]["audio"]["transcript"]) == (1, None, "")

    async def test_audio_of_another_rate_than_declared_is_the_servers_fault(self, make_client: Any) -> None:
        engine = FakeEngine(chat=replace(SPEAKING, traits=replace(SPEAKING.traits, channels=2)), stages=("a", "b", "c"))

        response = await make_client(engine).chat(modalities=BOTH)

        assert response.status_code == 500


class TestRefused:
    """Bad bodies: the field is named, and the next request is answered (B23)."""

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"modalities": []}, "modalities"),
            ({"modalities": ["video"]}, "modalities"),
            ({"modalities": "audio"}, "modalities"),
            ({"modalities": BOTH, "audio": {"voice": "nobody"}}, "audio.voice"),
            ({"modalities": BOTH, "audio": {"voice": ""}}, "audio"),
            ({"modalities": BOTH, "audio": {"format": "midi"}}, "audio"),
            ({"modalities": BOTH, "audio": {"sound": 1}}, "audio"),
            ({"modalities": BOTH, "n": 2}, "n"),
            ({"audio": {"voice": "Ada"}}, "audio"),
            ({"modalities": BOTH, "stream": True, "audio": {"format": "wav"}}, "audio.format"),
            ({"messages": []}, "messages"),
            ({"messages": "hi"}, "messages"),
            ({"n": 0}, "n"),
            ({"n": 17}, "n"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": "5"}, "max_tokens"),
            ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
            ({"temperature": -1}, "temperature"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"stream": "yes"}, "stream"),
            ({"store": True}, "store"),
            ({"functions": []}, "functions"),
            ({"prediction": {}}, "prediction"),
            ({"mm_processor_kwargs": {"fps": 100}}, "mm_processor_kwargs"),
            ({"media_io_kwargs": {}}, "media_io_kwargs"),
            ({"chat_template": "{{ x }}"}, "chat_template"),
        ],
        ids=str,
    )
    async def test_a_wrong_field_is_named(self, fields: dict[str, Any], param: str, chatty: Any, talking: FakeEngine) -> None:
        await chatty.chat_refused(param, **fields)

        assert talking.ids == []
        assert (await chatty.chat()).status_code == 200

    async def test_an_unknown_voice_lists_those_there_are(self, chatty: Any) -> None:
        assert "Ada, Bob" in await chatty.chat_refused("audio.voice", modalities=BOTH, audio={"voice": "alloy"})

    async def test_a_model_that_only_writes_refuses_to_speak(self, make_client: Any) -> None:
        client = make_client(FakeEngine(chat=WRITING, stages=("thinker",), speaks=False))

        assert "it makes text" in await client.chat_refused("modalities", modalities=BOTH)
        assert "the model makes text" in await client.chat_refused("audio", audio={"voice": "Ada"})
        assert (await client.chat()).json()["choices"][0]["message"]["content"] == ANSWER

    async def test_labels_of_openais_clients_are_taken(self, chatty: Any) -> None:
        labels = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k", "store": False}

        assert (await chatty.chat(**labels, service_tier="auto")).status_code == 200

    async def test_a_conversation_too_long_has_openais_code(self, chatty: Any) -> None:
        response = await chatty.chat("refuse")

        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert response.json()["error"]["param"] == "messages"

    async def test_a_model_of_another_name_is_not_found(self, chatty: Any) -> None:
        await chatty.chat_refused("model", model="gpt-4o", status=404)

    async def test_a_model_that_speaks_texts_answers_no_conversations(self, client: Any) -> None:
        assert "does not answer conversations" in await client.chat_refused("model")

    async def test_a_model_that_chats_speaks_no_given_text(self, chatty: Any) -> None:
        """B23, vllm-omni#2747."""
        assert (await chatty.speak()).status_code == 400

    async def test_completions_are_refused_with_the_pipelines_reason(self, chatty: Any, client: Any) -> None:
        spoken = await chatty.post("/v1/completions", json={"prompt": "x"})
        other = await client.post("/v1/completions", json={"prompt": "x"})

        assert spoken.status_code == other.status_code == 400
        assert spoken.json()["error"]["message"] == "this model takes turns"
        assert "does not continue texts" in other.json()["error"]["message"]

    async def test_a_body_that_is_too_large_is_refused_before_it_is_read(self, talking: FakeEngine, make_client: Any) -> None:
        response = await make_client(talking, max_body_bytes=1000).chat("x" * 2000)

        assert response.status_code == 413


class TestDisconnect:
    """The client leaves."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_leaves_ends_its_requests(
        self, stream: bool, talking: FakeEngine, call: Any, make_plugins: Callable[..., Any], caplog: Any
    ) -> None:
        app = build_app(talking, ServerSettings("m"), plugins=make_plugins())
        body = {"messages": [{"role": "user", "content": "endless"}], "stream": stream, "n": 2}
        with caplog.at_level(logging.INFO):
            asked = call(app, body, "/v1/chat/completions")
            await asyncio.wait_for(talking.working.wait(), 10)

            asked.leave.set()
            await asked.ended()

        assert sorted(talking.aborted) == sorted(talking.ids)
        assert len(talking.ids) == 2

    async def test_a_client_that_stops_reading_is_given_up(
        self, talking: FakeEngine, call: Any, make_plugins: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streaming, "SEND_STALL_S", 0.05)
        app = build_app(talking, ServerSettings("m"), plugins=make_plugins())
        asked = call(app, {"messages": [{"role": "user", "content": "endless"}], "stream": True}, "/v1/chat/completions")
        await asked.next()

        asked.stalled = True
        await asked.ended()

        assert talking.aborted == talking.ids


async def test_speech_and_conversations_are_told_apart(talking: FakeEngine, chatty: Any) -> None:
    await chatty.chat()

    assert not isinstance(talking.prompts[0], SpeechPrompt)
