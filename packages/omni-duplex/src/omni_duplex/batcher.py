"""Hear units of several sessions together, for models whose forward pass costs the same for one and for many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omni_duplex.model import AudioIn, DuplexModel, DuplexStream, Output


class Batcher:
    """Gather the units that arrive while a step runs, and give them to the next one.

    Args:
        model: A model with `step_many`.
        max_batch: Most units in a step.
    """

    def __init__(self, model: DuplexModel, max_batch: int) -> None:
        self._model = model
        self._max_batch = max_batch
        self._waiting: list[tuple[DuplexStream, AudioIn, asyncio.Future[Sequence[Output]]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def step(self, stream: DuplexStream, unit: AudioIn) -> Sequence[Output]:
        """Return what comes of one session's unit. Cancelling it waits for a step that hears the unit already."""
        done: asyncio.Future[Sequence[Output]] = asyncio.get_running_loop().create_future()
        entry = (stream, unit, done)
        self._waiting.append(entry)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError:
            if not any(other is entry for other in self._waiting) and not done.done():
                await asyncio.wait({done})  # whoever cancels closes the stream next, which must not be while it is heard
            done.cancel()
            if not done.cancelled():
                done.exception()  # nobody asks for it any more
            raise
        return done.result()

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whoever is ready in this turn of the loop comes along
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            batch = [entry for entry in batch if not entry[2].done()]
            if batch:
                await self._step(batch)

    async def _step(self, batch: list[tuple[DuplexStream, AudioIn, asyncio.Future[Sequence[Output]]]]) -> None:
        try:
            found = await self._model.step_many([(stream, unit) for stream, unit, _ in batch])
            if len(found) != len(batch):
                raise ValueError(f"step_many gave {len(found)} results for {len(batch)} units")
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything; it costs the sessions of this step
            for _, _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, _, done), outputs in zip(batch, found, strict=True):
            if not done.done():
                done.set_result(outputs)
