"""A core's pulse: answers and processor time keep it alive, silence alone ends it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from omni_core.engine.ar.pulse import Pulse
from omni_core.errors import StageDeadError

pytestmark = pytest.mark.anyio
NOBODY = ()


class FakeEngine:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def is_sleeping(self) -> bool:
        self.asked += 1
        await self.may_answer.wait()
        return False


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def _compute() -> None:
    """Use more of this process's time than one tick of the clock that counts it, on however fast a machine."""
    end = time.process_time() + 2 / os.sysconf("SC_CLK_TCK")
    while time.process_time() < end:
        pass


async def test_a_core_that_answers_lives() -> None:
    engine = FakeEngine()
    engine.may_answer.set()
    pulse = Pulse(engine, NOBODY, 3.0, "stage 0")

    for _ in range(10):
        pulse.check(2.0)
        await _settle()

    assert engine.asked == 10


async def test_a_core_that_neither_answers_nor_computes_is_dead_when_the_time_is_up() -> None:
    engine = FakeEngine()
    pulse = Pulse(engine, NOBODY, 3.0, "stage 0")
    for _ in range(2):
        pulse.check(2.0)
        await _settle()

    with pytest.raises(StageDeadError, match=r"the engine core was silent for 3 s"):
        pulse.check(2.0)

    assert engine.asked == 1


async def test_a_late_answer_begins_the_count_anew() -> None:
    engine = FakeEngine()
    pulse = Pulse(engine, NOBODY, 3.0, "stage 0")
    pulse.check(2.0)
    await _settle()
    pulse.check(2.0)
    engine.may_answer.set()
    await _settle()
    pulse.check(2.0)
    engine.may_answer.clear()
    await _settle()

    pulse.check(2.0)


async def test_a_core_that_computes_lives_without_an_answer() -> None:
    engine = FakeEngine()
    pulse = Pulse(engine, [os.getpid()], 1.0, "stage 0")

    for _ in range(5):
        _compute()
        pulse.check(2.0)
        await _settle()

    assert engine.asked == 1
    pulse.stop()


async def test_processor_time_of_a_core_that_is_gone_is_none() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pulse = Pulse(FakeEngine(), [gone.pid], 1.0, "stage 0")
    pulse.check(2.0)
    await _settle()

    with pytest.raises(StageDeadError):
        pulse.check(2.0)
