"""The written answer, from what an engine gave: with a scripted parser in place of vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runner's records are read in the stage's process")

from omni_core.engine.ar.reply import Reply, logprob_entries
from omni_core.runner import StageOutput

pytestmark = pytest.mark.engine


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return "".join(f"<{token}>" for token in ids)


class Call(SimpleNamespace):
    def model_dump(self, exclude_none: bool) -> dict[str, Any]:
        assert exclude_none
        return dict(self.__dict__)


class Parser:
    """Takes what is in brackets for reasoning and what begins with ! for a call."""

    reasoning_parser = object()

    def __init__(self) -> None:
        self.prompts: list[Any] = []

    def parse_delta(
        self, *, delta_text: str, delta_token_ids: Any, request: Any, prompt_token_ids: Any, finished: bool
    ) -> SimpleNamespace | None:
        self.prompts.append(prompt_token_ids)
        if not delta_text:
            return None
        reasoning = delta_text[1:-1] if delta_text.startswith("[") else None
        calls = [Call(index=0, name=delta_text[1:])] if delta_text.startswith("!") else []
        content = None if reasoning or calls else delta_text
        return SimpleNamespace(content=content, reasoning=reasoning, tool_calls=calls)

    def count_reasoning_tokens(self, ids: Any) -> int:
        return len([token for token in ids if token < 0])


def found(text: str, ids: tuple[int, ...] = (1,), cached: int | None = None, logprobs: Any = None) -> Any:
    answer = SimpleNamespace(text=text, token_ids=ids, logprobs=logprobs)
    return SimpleNamespace(outputs=[answer], num_cached_tokens=cached)


def request(**fields: Any) -> Any:
    return SimpleNamespace(**{"include_reasoning": True, "tool_choice": None, "parallel_tool_calls": True, **fields})


def read(reply: Reply, text: str, ids: tuple[int, ...] = (1,), *, finished: bool = False, **more: Any) -> StageOutput:
    output = StageOutput(token_ids=list(ids), text=text, finished=finished, finish_reason="stop" if finished else None)
    reply.read(output, found(text, ids, **more))
    return output


def make(parser: Any = None, top: int = 0, **fields: Any) -> Reply:
    return Reply(Tokenizer(), parser, request(**fields), [5, 6], {"prompt_audio_tokens": 3.0}, {"reasoning_ended": True}, top)


def test_without_a_parser_the_text_is_the_answer() -> None:
    reply = make()

    first, last = read(reply, "[a]"), read(reply, "b", finished=True, cached=4)

    assert (first.text, first.reply) == ("[a]", {})
    assert (last.text, last.finish_reason) == ("b", "stop")
    assert last.metrics == {"prompt_audio_tokens": 3.0, "cached_tokens": 4.0}
    assert reply.engine == {"reasoning_ended": True}


def test_reasoning_and_calls_leave_the_text() -> None:
    parser = Parser()
    reply = make(parser)

    outputs = [read(reply, "[hm]", (-1, -2)), read(reply, "so"), read(reply, "!f"), read(reply, "", finished=True)]

    assert [output.text for output in outputs] == ["", "so", "", ""]
    assert outputs[0].reply == {"reasoning": "hm"}
    assert outputs[2].reply == {"tool_calls": [{"index": 0, "name": "f"}]}
    assert outputs[3].finish_reason == "tool_calls"
    assert outputs[3].metrics["reasoning_tokens"] == 2.0
    assert parser.prompts == [[5, 6]] * 4


def test_one_call_at_a_time_leaves_out_the_others() -> None:
    class Two(Parser):
        def parse_delta(self, **_: Any) -> SimpleNamespace:
            calls = [Call(index=0, name="f"), Call(index=1, name="g")]
            return SimpleNamespace(content=None, reasoning=None, tool_calls=calls)

    alone, both = make(Two(), parallel_tool_calls=False), make(Two())

    assert [call["name"] for call in read(alone, "!").reply["tool_calls"]] == ["f"]
    assert [call["name"] for call in read(both, "!").reply["tool_calls"]] == ["f", "g"]


def test_a_tool_that_the_request_names_ends_with_stop() -> None:
    reply = make(Parser(), tool_choice=SimpleNamespace(function="f"))

    assert read(reply, "!f", finished=True).finish_reason == "stop"


def test_hidden_reasoning_hides_its_log_probabilities() -> None:
    step = {1: SimpleNamespace(logprob=-1.0, rank=1, decoded_token="x")}

    hidden = read(make(Parser(), include_reasoning=False), "x", logprobs=[step])
    shown = read(make(Parser()), "x", logprobs=[step])

    assert "logprobs" not in hidden.reply
    assert shown.reply["logprobs"][0]["token"] == "x"


@pytest.mark.parametrize(("top", "listed"), [(0, []), (1, ["b"]), (2, ["b", "a"]), (-1, ["b", "a", "<9>"])])
def test_log_probabilities_have_openais_form_and_the_most_likely_first(top: int, listed: list[str]) -> None:
    step = {
        7: SimpleNamespace(logprob=-2.0, rank=2, decoded_token="a"),
        8: SimpleNamespace(logprob=-0.5, rank=1, decoded_token="b"),
        9: SimpleNamespace(logprob=float("-inf"), rank=3, decoded_token=None),
    }

    (entry,) = logprob_entries([7], [step], Tokenizer(), top)

    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -2.0, [97])
    assert [item["token"] for item in entry["top_logprobs"]] == listed
    assert all(item["logprob"] >= -9999.0 for item in entry["top_logprobs"])


def test_a_token_without_candidates_has_its_text() -> None:
    (entry,) = logprob_entries([3], [None], Tokenizer(), 2)

    assert entry == {"token": "<3>", "logprob": -9999.0, "bytes": list(b"<3>"), "top_logprobs": []}
