"""Qwen3-Omni as a duplex model: it listens all the time and answers when the user's turn is over. Imports nothing heavy."""

from __future__ import annotations

from omni_duplex.turn_chat import ChatTurnModel


class Qwen3OmniDuplex(ChatTurnModel):
    """Answer spoken and written turns with text and speech; the audio encoder hears 16 kHz."""

    plugin_id = "qwen3_omni_moe"
