"""Units of several sessions in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from omni_duplex.batcher import Batcher
from omni_duplex.model import AudioIn, DuplexStream, Fence, Listen, Output
from omni_duplex.testing import ScriptedModel

pytestmark = pytest.mark.anyio

UNIT = AudioIn(np.zeros(10, np.float32), 24_000, Fence("s"))


class Gated(ScriptedModel):
    """A model whose steps last until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.sizes: list[int] = []

    async def step_many(self, batch: Sequence[tuple[DuplexStream, AudioIn]]) -> Sequence[Sequence[Output]]:
        self.sizes.append(len(batch))
        self.begun.set()
        await self.go_on.wait()
        return [[Listen(unit.fence)] for _, unit in batch]


async def stream_of(model: Gated) -> Any:
    return await model.open(None, None, Fence("s"))  # type: ignore[arg-type]


async def test_units_that_come_while_a_step_runs_are_heard_together_in_the_next() -> None:
    model = Gated()
    batcher = Batcher(model, 8)
    first = asyncio.create_task(batcher.step(await stream_of(model), UNIT))
    await model.begun.wait()
    others = [asyncio.create_task(batcher.step(await stream_of(model), UNIT)) for _ in range(2)]
    await asyncio.sleep(0)
    model.go_on.set()

    found = await asyncio.gather(first, *others)

    assert model.sizes == [1, 2]
    assert [list(outputs) for outputs in found] == [[Listen(UNIT.fence)]] * 3


async def test_a_step_that_runs_is_over_before_its_cancelled_session_goes_on() -> None:
    """A stream is never closed while it is heard."""
    model = Gated()
    batcher = Batcher(model, 8)
    hearing = asyncio.create_task(batcher.step(await stream_of(model), UNIT))
    await model.begun.wait()

    hearing.cancel()
    await asyncio.sleep(0)
    went_on_early = hearing.done()
    model.go_on.set()
    await asyncio.wait({hearing})

    assert not went_on_early
    assert hearing.cancelled()


async def test_a_unit_that_waits_for_its_step_is_forgotten_when_its_session_ends() -> None:
    model = Gated()
    batcher = Batcher(model, 8)
    first = asyncio.create_task(batcher.step(await stream_of(model), UNIT))
    await model.begun.wait()
    second = asyncio.create_task(batcher.step(await stream_of(model), UNIT))
    await asyncio.sleep(0)

    second.cancel()
    await asyncio.wait({second})
    model.go_on.set()
    await first
    await asyncio.sleep(0)

    assert model.sizes == [1]
