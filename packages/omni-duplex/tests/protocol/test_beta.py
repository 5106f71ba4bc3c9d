"""The beta's names: a client written for it finds everything where it was."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.protocol.beta import BetaDialect
from omni_duplex.testing import ScriptedTurnModel

pytestmark = pytest.mark.anyio


def spoken(fence: Fence) -> list[Any]:
    return [TextOut("hello", fence), AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence), TurnEnd(fence)]


async def test_a_turn_in_the_names_of_the_beta(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel([spoken], Capabilities(text_input=True)), dialect=BetaDialect())
    session = {"modalities": ["text", "audio"], "input_audio_format": "pcm16", "output_audio_format": "g711_ulaw"}
    await client.send("session.update", session={**session, "voice": "any", "turn_detection": None, "temperature": 0.8})
    content = [{"type": "input_text", "text": "hi"}]
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    await client.send("response.create", response={"modalities": ["text", "audio"]})

    events = await client.until("response.done")

    types = [event["type"] for event in events]
    assert "response.audio.delta" in types
    assert "response.audio_transcript.done" in types
    assert "conversation.item.created" in types
    assert not [kind for kind in types if "output_audio" in kind or kind == "conversation.item.added"]
    updated = next(event for event in events if event["type"] == "session.updated")["session"]
    assert (updated["output_audio_format"], updated["modalities"], updated["voice"]) == ("g711_ulaw", ["text", "audio"], "any")
    assert events[-1]["response"]["output"][0]["content"][0]["type"] == "audio"
    sound = b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == "response.audio.delta")
    assert len(sound) == 800, "a tenth of a second of telephone audio"


@pytest.mark.parametrize(
    ("session", "param"),
    [({"input_audio_format": "mp3"}, "session.input_audio_format"), ({"temperature": 0.2}, "session.temperature")],
)
async def test_what_the_beta_had_and_we_have_not_is_refused(
    talk: Callable[..., Any], session: dict[str, Any], param: str
) -> None:
    client = await talk(ScriptedTurnModel(), dialect=BetaDialect())

    await client.send("session.update", session=session)

    assert (await client.until("error"))[-1]["error"]["param"] == param
