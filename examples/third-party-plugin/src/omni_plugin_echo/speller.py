"""Stage 0: a runner of our own, which makes one number for each character and yields it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import StageInput, StageOutput, StageRunner
from omni_plugin_echo.checkpoint import PITCHES


class Speller(StageRunner):
    """Spell texts. There is no model to load and nothing to free."""

    async def start(self) -> Mapping[str, Any]:
        """Become ready."""
        return {"pitches": PITCHES}

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield the number of each character, up to `max_tokens` of them."""
        numbers = spell(str(request.inputs["text"]))
        limit = int(request.sampling.get("max_tokens", len(numbers)))
        count = min(limit, len(numbers))
        for index, number in enumerate(numbers[:count]):
            last = index == count - 1
            yield StageOutput(
                tensors={"numbers": number.reshape(1, 1)},
                token_ids=[int(number)],
                finished=last,
                finish_reason=("stop" if count == len(numbers) else "length") if last else None,
                metrics={"frames": float(count)} if last else {},
                handoff={"voice": request.inputs["voice"]} if index == 0 else {},
            )
            # Others get their turn after each character, as they do in an engine after each step.
            await asyncio.sleep(0)

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Take nothing: this stage is an entry."""

    async def abort(self, request_id: str) -> None:
        """Do nothing: closing the iterator of `run` ends a request."""

    async def stop(self) -> None:
        """Do nothing: there is nothing to free."""


def spell(text: str) -> np.ndarray[Any, Any]:
    """Return a number below PITCHES for each character: int64 [characters]."""
    return np.array([ord(character) % PITCHES for character in text], np.int64)
