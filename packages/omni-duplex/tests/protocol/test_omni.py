"""Our own dialect: coming back, interrupting, acknowledging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_duplex.model import AudioOut, Capabilities, Fence, Listen, TextOut, TurnEnd
from omni_duplex.protocol.omni import OmniDialect
from omni_duplex.testing import ScriptedModel, ScriptedTurnModel

pytestmark = pytest.mark.anyio


def spoken(fence: Fence) -> list[Any]:
    return [TextOut("hello", fence), AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence), TurnEnd(fence)]


async def test_the_first_event_says_how_to_come_back_and_what_the_model_can_do(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel(), dialect=OmniDialect())

    created = (await client.until("session.created"))[0]

    assert created["attachment_generation"] == 1
    assert len(created["resume_token"]) > 30
    assert created["capabilities"]["supports_session_resume"] is True
    assert "server_event_seq" not in created


async def test_written_text_is_answered_and_its_playback_is_what_was_heard(talk: Callable[..., Any]) -> None:
    model = ScriptedTurnModel([spoken, spoken], Capabilities(text_input=True))
    client = await talk(model, dialect=OmniDialect())
    await client.send("input.text.append", text="hi")
    await client.send("response.create")
    done = (await client.until("response.done"))[-1]
    answer = done["response"]["output"][0]["id"]

    await client.send("playback.ack", item_id=answer, played_ms=0)
    acknowledged = (await client.until("playback.acknowledged"))[-1]
    await client.send("response.create")
    await client.until("response.done")

    assert acknowledged["item_id"] == answer
    stream: Any = model.streams[0]
    assert [message.role for message in stream.asked[1][0]] == ["user"], "nothing of the answer was heard"


async def test_listening_and_heartbeats_are_told(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedModel([lambda fence: [Listen(fence)]]), dialect=OmniDialect())
    await client.send("session.heartbeat")
    await client.send("input_audio_buffer.append", audio="AAAA" * 1280)

    await client.until("session.heartbeat_ack")
    await client.until("response.listen")

    assert [event.get("server_event_seq") for event in client.events] == [None, 2, 3]


async def test_what_is_acknowledged_is_forgotten(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel(), dialect=OmniDialect())
    for _ in range(3):
        await client.send("session.heartbeat")
        await client.until("session.heartbeat_ack")

    await client.send("session.event_ack", last_received_server_event_seq=3)
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")

    journal = client.actor.outbox.journal
    assert [sent.seq for sent in journal.since(3, 0.0)] == [4, 5]
    with pytest.raises(Exception, match="not kept any more"):
        journal.since(1, 0.0)


async def test_closing_is_answered_once_and_the_socket_is_closed(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel(), dialect=OmniDialect())

    await client.send("session.close")
    await client.send("session.close")
    closed = await client.until("session.closed")

    assert closed[-1]["reason"] == "client"
    assert await client.actor.outbox.channel.get() == (1000, "client")
