"""From the thinker to the talker: the rows of each position, as the thinker makes them, in the thinker's stage process.

A payload holds the thinker's tensors under their names, dimension 0 being the positions, and the sampled `token_ids` int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput


def thinker2talker_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the rows that are new, None for an output without any that does not end the request."""
    payload = thinker2talker(handoff, output)
    return payload if payload or output.finished else None


def thinker2talker(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all rows of an output."""
    payload: dict[str, Any] = {name: rows for name, rows in output.tensors.items() if len(rows)}
    if output.token_ids:
        payload["token_ids"] = np.asarray(output.token_ids, dtype=np.int64)
    return payload
