"""A scripted conversation partner for `fake_engine`: the first word of the last message says what happens.

| first word | what the request does |
|---|---|
| `refuse` | is refused by the stage that writes |
| `fail`, `fail-later` | fails, before anything is written or after two words |
| `long` | ends with the reason `length` |
| `mute` | writes one word and makes no audio |
| `call` | calls a tool |
| `think` | reasons before it answers |
| `endless` | writes until it is aborted |
| `wait-later` | writes two words, and ends when the test sets `go_on` |
| anything else | answers "Hello there, friend." and speaks for three chunks |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any

import numpy as np

from omni_core.chat import ChatTraits, ServedChat
from omni_core.errors import ContextLengthError, StageDeadError
from omni_core.request import OmniOutput

WORDS = ("Hello", " there,", " friend.")
FRAME = 480
CHUNKS = 3
TRAITS = ChatTraits(frozenset({"text", "image", "audio", "video"}), ("Ada", "Bob"), "Ada", 24_000, samples_per_frame=FRAME)
SPEAKING = ServedChat(TRAITS, ("text", "audio"), 0, 3, {"completions": "this model takes turns"})
WRITING = ServedChat(ChatTraits(frozenset({"text"})), ("text",), 0, 1)
_METRICS = {"prompt_tokens": 11.0, "generated_tokens": 3.0, "prompt_audio_tokens": 4.0, "cached_tokens": 2.0}
_CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
_REST = {"index": 0, "function": {"arguments": '"Paris"}'}}


class FakeChat:
    """Answer one conversation."""

    def __init__(self, chat: ServedChat | None, go_on: asyncio.Event) -> None:
        assert chat is not None
        self.chat = chat
        self.go_on = go_on

    async def outputs(
        self, body: Mapping[str, Any], name: str, wanted: Collection[int | str] | None
    ) -> AsyncGenerator[OmniOutput, None]:
        """Yield what the last message says."""
        order = _first_word(body["messages"][-1])
        if order == "refuse":
            raise ContextLengthError("a prompt of 9 positions is too long", where="stage 0 (thinker)", param="messages")
        if order == "fail":
            raise StageDeadError("the process ended with signal 9", where="stage 0 (thinker)")
        speaks = len(self.chat.outputs) > 1 and (wanted is None or "audio" in wanted)
        async for output in self._text(order, name, last=not speaks):
            yield output
            await asyncio.sleep(0)
        if speaks:
            async for output in self._audio(order, name):
                yield output

    async def _text(self, order: str, name: str, *, last: bool) -> AsyncGenerator[OmniOutput, None]:
        def piece(text: str, reply: Mapping[str, Any] | None = None) -> OmniOutput:
            return OmniOutput(name, 0, "text", text, reply=reply or {})

        while order == "endless":
            yield piece("word ")
            await asyncio.sleep(0)
        if order == "think":
            yield piece("", {"reasoning": "Hm. "})
        if order == "call":
            yield piece("", {"tool_calls": [_CALL]})
            yield piece("", {"tool_calls": [_REST]})
        else:
            for word in WORDS[: 1 if order == "mute" else 2]:
                yield piece(
                    word, {"logprobs": [{"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}]}
                )
        if order == "fail-later":
            raise StageDeadError("the process ended with signal 9", where="stage 0 (thinker)")
        if order == "wait-later":
            await self.go_on.wait()
        reason = {"long": "length", "call": "tool_calls"}.get(order, "stop")
        text = "" if order in ("mute", "call") else WORDS[2]
        yield OmniOutput(
            name,
            0,
            "text",
            text,
            finished=last,
            finish_reason=("length" if order == "long" else "stop") if last else None,
            stage_finish_reason=reason,
            stage_metrics=_METRICS,
        )

    async def _audio(self, order: str, name: str) -> AsyncGenerator[OmniOutput, None]:
        rate = self.chat.traits.sample_rate
        for index in range(0 if order == "mute" else CHUNKS):
            yield OmniOutput(name, 2, "audio", tone(index), sample_rate=rate)
            await asyncio.sleep(0)
        nothing = np.zeros((0, 1), np.float32)
        reason = "length" if order == "long" else "stop"
        yield OmniOutput(
            name, 2, "audio", nothing, sample_rate=rate, finished=True, finish_reason=reason, stage_finish_reason=reason
        )


def tone(chunk: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return chunk number `chunk` of what is spoken, two frames [960, 1]."""
    times = (np.arange(2 * FRAME) + chunk * 2 * FRAME) / 24_000
    return (0.4 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)[:, None]


def _first_word(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, list):
        content = " ".join(part["text"] for part in content if part["type"] == "text")
    return str(content).split()[0] if content else ""
