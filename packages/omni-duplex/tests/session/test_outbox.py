"""What may wait for a client, and how much room it takes."""

from __future__ import annotations

import pytest

from omni_duplex.session.outbox import MAX_BYTES, Outbox, SlowConsumer


def test_audio_within_an_item_takes_room_too() -> None:
    """Else a client that asks for its own audio again and again and reads nothing would fill the memory."""
    outbox = Outbox(None, numbered=False)
    outbox.attach()
    retrieved = {"type": "conversation.item.retrieved", "item": {"content": [{"type": "input_audio", "audio": "A" * 2**20}]}}

    for _ in range(4):
        outbox.put(retrieved, 0.0)
    with pytest.raises(SlowConsumer):
        outbox.put(retrieved, 0.0)

    assert MAX_BYTES <= outbox.channel.nbytes <= MAX_BYTES + 2**20 + 4096
