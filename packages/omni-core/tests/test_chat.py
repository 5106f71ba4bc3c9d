from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.chat import (
    ChatTraits,
    ServedChat,
    chat_payload,
    final_types,
    join_replies,
    resolve_voice,
    served_chat,
    wanted_stages,
)
from omni_core.client import AsyncOmni
from omni_core.errors import RequestError, ServiceError
from omni_core.model_info import ModelInfo
from omni_core.testing.pipelines import fake_pipeline


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TRAITS = ChatTraits(voices=("Ada", "Bob"), default_voice="Bob")
CHAT = ServedChat(TRAITS, ("text", "audio"), 0, 2)


def fake_traits(model: ModelInfo) -> ChatTraits:
    return replace(TRAITS, samples_per_frame=len(str(model.path)))


class TestPayload:
    """A conversation on its way to the entry stage."""

    def test_it_is_json_with_the_voice_in_the_models_spelling(self) -> None:
        payload = chat_payload({"chat": {"messages": [{"role": "user", "content": "hé"}], "voice": "ADA"}}, CHAT)

        assert json.loads(payload["chat"]) == {"messages": [{"role": "user", "content": "hé"}], "voice": "Ada"}
        assert payload["media"] == {}

    def test_a_list_is_taken_for_the_messages_and_the_voice_is_the_default_one(self) -> None:
        payload = chat_payload({"chat": [{"role": "user", "content": "hi"}], "media": {"place": b"x"}}, CHAT)

        assert json.loads(payload["chat"])["voice"] == "Bob"
        assert payload["media"] == {"place": b"x"}

    def test_a_pipeline_without_voices_gets_none(self) -> None:
        payload = chat_payload({"chat": [{"role": "user", "content": "hi"}]}, replace(CHAT, traits=ChatTraits()))

        assert "voice" not in json.loads(payload["chat"])

    @pytest.mark.parametrize(
        ("prompt", "param"),
        [
            ({"chat": {"messages": []}}, "messages"),
            ({"chat": {}}, "messages"),
            ({"chat": "hello"}, "chat"),
            ({"chat": [{"role": "user", "content": b"bytes"}]}, "chat"),
            ({"chat": {"messages": [{}], "voice": 7}}, "voice"),
            ({"chat": {"messages": [{}], "voice": "nobody"}}, "voice"),
            ({"chat": [{}], "temperature": 1}, "temperature"),
        ],
    )
    def test_what_is_no_conversation_is_refused_with_its_field(self, prompt: dict[str, Any], param: str) -> None:
        with pytest.raises(RequestError) as caught:
            chat_payload(prompt, CHAT)

        assert caught.value.param == param

    def test_a_pipeline_that_answers_none_refuses_all(self) -> None:
        with pytest.raises(RequestError, match="does not answer conversations"):
            chat_payload({"chat": [{}]}, None)


class TestVoice:
    """B24: one rule for names of voices, everywhere."""

    @pytest.mark.parametrize(("name", "voice"), [("ada", "Ada"), ("ADA", "Ada"), (None, "Bob"), ("default", "Bob")])
    def test_case_does_not_matter_and_there_is_a_default(self, name: str | None, voice: str) -> None:
        assert resolve_voice(TRAITS, name) == voice

    @pytest.mark.parametrize("name", ["nobody", "", " ada "])
    def test_an_unknown_one_is_refused_with_the_list(self, name: str) -> None:
        with pytest.raises(RequestError) as caught:
            resolve_voice(TRAITS, name)

        assert caught.value.param == "audio.voice"
        assert "Ada, Bob" in caught.value.hint

    def test_a_model_that_does_not_speak_has_none(self) -> None:
        assert resolve_voice(ChatTraits(), None) is None
        with pytest.raises(RequestError, match="does not speak"):
            resolve_voice(ChatTraits(), "Ada")


class TestOutputs:
    """What is wanted of an answer."""

    def test_types_and_ids_name_final_stages(self) -> None:
        config = fake_pipeline(text_output=True).config

        assert final_types(config) == {0: "text", 1: "audio"}
        assert wanted_stages(config, None) == frozenset()
        assert wanted_stages(config, ["text"]) == {0}
        assert wanted_stages(config, ["audio", 0]) == {0, 1}

    @pytest.mark.parametrize("wanted", ["video", 7])
    def test_what_no_stage_makes_is_refused_with_what_they_make(self, wanted: Any) -> None:
        with pytest.raises(RequestError) as caught:
            wanted_stages(fake_pipeline(text_output=True).config, [wanted])

        assert caught.value.param == "modalities"
        assert caught.value.hint == "it makes text, audio"

    @pytest.mark.anyio
    async def test_stages_that_text_does_not_need_never_see_the_request(self) -> None:
        """Nothing is handed over: the function that would do it fails whenever it is called."""
        resolved = fake_pipeline(text_output=True, hand_over="omni_core.testing.fakes:broken_hand_over")
        async with AsyncOmni.from_resolved(resolved) as omni:
            outputs = [output async for output in omni.generate({"seed": 1, "count": 5}, outputs={"text"})]

            with pytest.raises(ServiceError):
                [output async for output in omni.generate({"seed": 1, "count": 5})]

        assert {output.type for output in outputs} == {"text"}
        assert outputs[-1].finished
        assert outputs[-1].finish_reason == outputs[-1].stage_finish_reason == "stop"
        assert all(output.stage_finish_reason is None for output in outputs[:-1])

    @pytest.mark.anyio
    async def test_each_stage_says_by_itself_why_it_ended(self) -> None:
        async with AsyncOmni.from_resolved(fake_pipeline(text_output=True)) as omni:
            asked = omni.generate({"seed": 1, "count": 9}, sampling_params_list=[{"max_tokens": 2}, {}])
            outputs = [output async for output in asked]

        ends = {output.type: output.stage_finish_reason for output in outputs if output.stage_finish_reason}
        assert ends["text"] == "length"
        assert set(ends) == {"text", "audio"}
        assert outputs[-1].finish_reason == "length"


def test_a_pipelines_traits_are_read_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_model", SimpleNamespace(traits=fake_traits))
    (tmp_path / "config.json").write_text("{}")
    resolved = fake_pipeline(text_output=True)
    config = replace(resolved.config, chat="some_model:traits", endpoint_restrictions=(("completions", "no"),))

    found = served_chat(replace(resolved, config=config, model=str(tmp_path)))

    assert found is not None
    assert found.traits.samples_per_frame == len(str(tmp_path))
    assert (found.outputs, found.text_stage, found.stages) == (("text", "audio"), 0, 2)
    assert found.restrictions == {"completions": "no"}
    assert served_chat(resolved) is None


def test_pieces_of_a_reply_are_joined() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}
    other = {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    rest = {"index": 0, "function": {"arguments": ": 1}"}}

    joined = join_replies([{"reasoning": "Hm"}, {"reasoning": "."}, {"tool_calls": [call]}, {}, {"tool_calls": [rest, other]}])

    assert joined == {
        "reasoning": "Hm.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert join_replies([{"logprobs": [1]}, {"logprobs": [2]}]) == {"logprobs": [1, 2]}
    assert join_replies([{}, {}]) == {}


def test_a_pipeline_that_answers_none_says_so_in_python_too() -> None:
    omni = AsyncOmni.from_resolved(fake_pipeline())

    async def ask() -> None:
        async for _ in omni.generate({"chat": [{"role": "user", "content": "hi"}]}):
            pass

    with pytest.raises(RequestError, match="does not answer conversations"):
        asyncio.run(ask())
