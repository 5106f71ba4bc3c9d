"""What a client may put into a conversation, and how large that becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_duplex.model import Capabilities, SessionConfig, TurnDetection
from omni_duplex.session import events as ev
from omni_duplex.session.reducer import reduce
from omni_duplex.session.state import Item, Limits, Part, Session


@pytest.fixture
def session() -> Session:
    limits = Limits(history_audio_bytes=1000, history_chars=100, history_items=5)
    session = Session("sess_0123456789abcdef", Capabilities(turn_policy="commit"), SessionConfig(), limits)
    reduce(session, ev.Attached(1), 0.0)
    return session


def create(session: Session, part: Part) -> dict[str, Any]:
    """Put a part into the conversation; return the last event that comes of it."""
    effects = reduce(session, ev.CreateItem(Item("", "message", "user", content=[part])), 0.0)
    sent = [effect.event for effect in effects if isinstance(effect, ev.Send)]
    return sent[-1]


def test_old_audio_and_images_that_a_client_put_there_go_and_their_words_stay(session: Session) -> None:
    for number in range(3):
        create(session, Part("input_audio", f"words {number}", audio=np.zeros(125, np.float32)))
    create(session, Part("input_image", image_url="data:image/png;base64," + "A" * 400))

    kept = [item.content[0] for item in session.items]

    assert [part.audio is not None for part in kept] == [False, False, True, False]
    assert [part.text for part in kept] == ["words 0", "words 1", "words 2", ""]
    assert kept[-1].image_url


def test_text_beyond_the_limit_is_refused_until_there_is_room(session: Session) -> None:
    assert create(session, Part("input_text", "a" * 90))["type"] == "conversation.item.done"

    refused = create(session, Part("input_text", "b" * 11))
    reduce(session, ev.DeleteItem(session.items[0].id), 0.0)

    assert refused["error"]["code"] == "conversation_too_large"
    assert create(session, Part("input_text", "b" * 11))["type"] == "conversation.item.done"


def test_items_beyond_the_limit_are_refused(session: Session) -> None:
    answers = [create(session, Part("input_text", "a"))["type"] for _ in range(6)]

    assert answers == ["conversation.item.done"] * 5 + ["error"]
    assert len(session.items) == 5


def test_the_id_of_speech_under_way_is_taken(session: Session) -> None:
    session.config = SessionConfig(turn_detection=TurnDetection())
    reduce(session, ev.Append(np.zeros(100, np.float32)), 0.0)
    reduce(session, ev.SpeechStarted(0), 0.0)
    taken = Item(session.input_item_id, "message", "user", content=[Part("input_text", "mine")])

    (*_, refused) = reduce(session, ev.CreateItem(taken), 0.0)

    assert isinstance(refused, ev.Send)
    assert refused.event["error"]["code"] == "item_id_exists"


def test_words_for_an_item_that_another_one_has_replaced_are_dropped(session: Session) -> None:
    reduce(session, ev.CreateItem(Item("item_1", "function_call", name="f", arguments="{}")), 0.0)

    assert reduce(session, ev.Transcribed("item_1", "words", 1.0), 0.0) == []
