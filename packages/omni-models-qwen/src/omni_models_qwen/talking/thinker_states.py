"""What of the thinker a talker reads: how its states are called on the way, and which facts of the prompt go along.

Runs in the processes of both stages; imports nothing heavy.
"""

from __future__ import annotations

from omni_core.payload import Payload

EMBEDS = "thinker_embeds"
"""Name of the rows that the thinker's first layer reads."""
HIDDEN = "thinker_hidden"
"""Name of the hidden states that the talker accepts: those of one layer, or what the last norm gives."""
_FACTS = ("prompt_token_ids", "mm", "voice")


def prompt_facts(inputs: Payload) -> Payload:
    """Return what a talker needs to know of the prompt: its ids, the facts of its media, the voice that was asked for.

    Args:
        inputs: `Handoff.inputs` of the thinker.
    """
    return {name: inputs[name] for name in _FACTS if name in inputs}
