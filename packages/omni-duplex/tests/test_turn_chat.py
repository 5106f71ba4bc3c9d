"""A turn model over a pipeline's chat: what a conversation becomes, what an answer becomes, when it is too long."""

from __future__ import annotations

import base64
import io
import types
import wave
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import omni_duplex.turn_chat as module
from omni_core.chat import ChatTraits, ServedChat
from omni_core.errors import ConfigError, ContextLengthError, ServiceError
from omni_core.request import OmniOutput
from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Content, Fence, Message, Output, ResponseOptions, SessionConfig, TextOut, TurnEnd
from omni_duplex.turn_chat import ChatTurnModel

pytestmark = pytest.mark.anyio

FENCE = Fence("s")
TRAITS = ChatTraits(frozenset({"text", "audio", "image"}), ("Chelsie", "Ethan"), "Ethan", 24_000, samples_per_frame=1920)
ALOUD, WRITTEN = ("audio",), ("text",)


class Chatting(ChatTurnModel):
    plugin_id = "chatting"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ChatTurnModel]:
    """Return a model over a pipeline of three stages, the second and third of which speak."""

    def build(traits: ChatTraits = TRAITS, outputs: tuple[str, ...] = ("text", "audio"), **limits: int) -> ChatTurnModel:
        monkeypatch.setattr(module, "served_chat", lambda pipeline: ServedChat(traits, outputs, 0, 3))
        stages = [types.SimpleNamespace(engine_args={"limit_mm_per_prompt": limits or {"audio": 2, "image": {"count": 1}}})]
        config = types.SimpleNamespace(model_type="chatting")
        return Chatting(types.SimpleNamespace(stages=stages, config=config))  # type: ignore[arg-type]

    return build


class Replica:
    """Answers with what it is given, or fails; notes what it was asked."""

    group = 0

    def __init__(self, *answers: Sequence[OmniOutput] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        self.closed = 0

    async def generate(self, inputs: Any, **options: Any) -> AsyncIterator[OmniOutput]:
        self.asked.append((inputs["chat"], options))
        answer = self.answers.pop(0)
        try:
            if isinstance(answer, Exception):
                raise answer
            for output in answer:
                yield output
        finally:
            self.closed += 1

    def open(self, inputs: Any, **options: Any) -> Any:
        raise AssertionError("a turn is one request")


def text(value: str, **fields: Any) -> OmniOutput:
    return OmniOutput("r", 0, "text", value, **fields)


def audio(samples: int, channels: int = 1) -> OmniOutput:
    return OmniOutput("r", 2, "audio", np.full((samples, channels), 0.5, np.float32), sample_rate=24_000)


LAST = text(
    "", stage_finish_reason="stop", stage_metrics={"prompt_tokens": 20, "prompt_audio_tokens": 13, "generated_tokens": 2}
)


def user(*content: Content) -> Message:
    return Message("user", content)


def spoken(seconds: float = 0.1, words: str = "") -> Content:
    return Content("audio", words, np.full(int(16_000 * seconds), 0.25, np.float32))


def options(modalities: tuple[str, ...] = ALOUD, **fields: Any) -> ResponseOptions:
    values = {"instructions": "", "voice": None, "tools": (), "tool_choice": "auto", "max_output_tokens": None, **fields}
    return ResponseOptions(output_modalities=modalities, **values)


async def answered(
    model: ChatTurnModel, replica: Replica, history: Sequence[Message], asked: ResponseOptions | None = None, **config: Any
) -> list[Output]:
    stream = await model.open(SessionConfig(**config), replica, FENCE)
    return [output async for output in stream.respond(history, asked or options(), FENCE)]


async def test_a_spoken_turn_is_a_request_with_a_recording_and_gives_words_and_sound(
    make: Callable[..., ChatTurnModel],
) -> None:
    replica = Replica([text("good "), audio(1920), text("day"), audio(100, channels=2), LAST])
    history = [Message("system", (Content("text", "be brief"),)), user(spoken())]

    found = await answered(make(), replica, history)

    ((body, given),) = replica.asked
    assert body["voice"] == "Ethan"
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    (part,) = body["messages"][1]["content"]
    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 1600)
        assert np.frombuffer(file.readframes(1), "<i2")[0] == round(0.25 * 32767)
    assert (part["type"], part["input_audio"]["format"]) == ("input_audio", "wav")
    assert set(given["outputs"]) == {"text", "audio"}
    assert [output.text for output in found if isinstance(output, TextOut)] == ["good ", "day"]
    assert [output.pcm.shape for output in found if isinstance(output, AudioOut)] == [(1920,), (100,)]
    usage = {"input_text_tokens": 7, "input_audio_tokens": 13, "output_text_tokens": 2, "output_audio_tokens": 2}
    assert found[-1] == TurnEnd(FENCE, "stop", usage)


async def test_a_written_answer_needs_no_voice_and_no_sound(make: Callable[..., ChatTurnModel]) -> None:
    replica = Replica([text("hi"), LAST])

    await answered(make(), replica, [user(Content("text", "hello"))], options(WRITTEN, max_output_tokens=5))

    ((body, given),) = replica.asked
    assert body == {"messages": [{"role": "user", "content": "hello"}]}
    assert given["outputs"] == ("text",)
    assert given["sampling_params_list"] == [{"max_tokens": 5}, {}, {}]


async def test_an_answer_that_is_cut_off_says_so(make: Callable[..., ChatTurnModel]) -> None:
    found = await answered(make(), Replica([text("hi", stage_finish_reason="length")]), [user(spoken())])

    assert isinstance(found[-1], TurnEnd)
    assert found[-1].reason == "length"


async def test_only_the_last_recordings_go_along_and_older_ones_as_words(make: Callable[..., ChatTurnModel]) -> None:
    replica = Replica([LAST])
    history = [user(spoken()), user(spoken(words="and you")), user(spoken()), Message("assistant", (Content("text", "ok"),))]

    await answered(make(), replica, [*history, user(Content("text", "look"), spoken(), Content("image", image_url="data:x"))])

    messages = replica.asked[0][0]["messages"]
    assert [message["role"] for message in messages] == ["user", "user", "assistant", "user"]
    assert messages[0]["content"] == "and you"
    assert [part["type"] for part in messages[1]["content"]] == ["input_audio"]
    assert [part["type"] for part in messages[3]["content"]] == ["text", "input_audio", "image_url"]


TURNS = [Message("system", (Content("text", "s"),)), *[user(Content("text", str(number))) for number in range(8)]]


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [("auto", ["s", "4", "5", "6", "7"]), ({"type": "retention_ratio", "retention_ratio": 0.25}, ["s", "6", "7"])],
    ids=["auto", "ratio"],
)
async def test_a_conversation_that_is_too_long_loses_its_oldest_part(
    make: Callable[..., ChatTurnModel], truncation: Any, kept: list[str]
) -> None:
    replica = Replica(ContextLengthError("too long"), [LAST])

    await answered(make(), replica, TURNS, truncation=truncation)

    assert [message["content"] for message in replica.asked[1][0]["messages"]] == kept


@pytest.mark.parametrize(
    ("truncation", "history", "error"),
    [
        ("disabled", TURNS, ContextLengthError("too long")),
        ("auto", TURNS[:2], ContextLengthError("too long")),
        ("auto", TURNS, ServiceError("broken")),
    ],
    ids=["disabled", "one turn", "another error"],
)
async def test_what_cannot_be_shortened_is_an_error(
    make: Callable[..., ChatTurnModel], truncation: Any, history: list[Message], error: Exception
) -> None:
    with pytest.raises(type(error)):
        await answered(make(), Replica(error), history, truncation=truncation)


async def test_an_answer_that_nobody_wants_any_more_is_aborted(make: Callable[..., ChatTurnModel]) -> None:
    replica = Replica([text("one"), text("two"), LAST])
    stream = await make().open(SessionConfig(), replica, FENCE)

    answer = stream.respond([user(spoken())], options(), FENCE)
    await anext(answer)
    await answer.aclose()  # type: ignore[attr-defined]

    assert replica.closed == 1
    await stream.close()


def test_it_says_what_the_chat_can_do(make: Callable[..., ChatTurnModel]) -> None:
    found = make().capabilities(4)

    assert (found.turn_policy, found.input_rate, found.output_rate) == ("commit", 16_000, 24_000)
    assert found.voices == ("Ethan", "Chelsie"), "the default voice first"
    assert (found.barge_in, found.session_resume, found.truncate, found.tools) == (True, True, True, False)
    assert (found.image_input, found.text_input, found.text_output) == (True, True, True)


def test_a_voice_or_setting_that_nobody_knows_is_refused(make: Callable[..., ChatTurnModel]) -> None:
    model = make()
    model.validate(SessionConfig(voice="chelsie"))

    for config, code in (
        (SessionConfig(voice="nobody"), "unknown_voice"),
        (SessionConfig(extra={"x": 1}), "unknown_parameter"),
    ):
        with pytest.raises(DuplexError) as refused:
            model.validate(config)
        assert refused.value.code == code


@pytest.mark.parametrize("lacks", ["hearing", "speech"])
def test_a_pipeline_that_does_not_hear_or_speak_is_refused(make: Callable[..., ChatTurnModel], lacks: str) -> None:
    with pytest.raises(ConfigError, match="does not answer speech with speech"):
        make(ChatTraits(frozenset({"text"}))) if lacks == "hearing" else make(outputs=("text",))
