"""Silent frames through a frontend's own replica groups before it listens, so that no client pays for the first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Any, cast

import numpy as np

from omni_core.errors import OmniError, StageStartError
from omni_duplex.model import (
    AudioIn,
    Capabilities,
    Content,
    DuplexModel,
    DuplexStream,
    Fence,
    Message,
    Output,
    ReplicaPort,
    ResponseOptions,
    SessionConfig,
)

logger = logging.getLogger(__name__)

TIMEOUT_S = 180.0
"""Seconds that the warm-up of all groups may take."""


async def warm_up(
    model: DuplexModel,
    capabilities: Capabilities,
    port: Callable[[int], ReplicaPort],
    groups: Collection[int],
    frames: int,
    config: SessionConfig,
) -> None:
    """Let every group hear silence, one after the other (DX-02, FE-06).

    Args:
        model: The duplex model.
        capabilities: What it can do.
        port: Returns the way to a group.
        groups: Numbers of the groups.
        frames: How many units each of them hears; a turn model gets one turn of that many units of 80 ms.
        config: What a session begins with.

    Raises:
        StageStartError: A group failed, or all of it took too long.
    """
    for group in groups:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await _warm_group(model, capabilities, port(group), frames, config)
        except TimeoutError as error:
            message = f"replica group {group} did not hear {frames} frames within {TIMEOUT_S:g} s"
            raise StageStartError(message, where="warmup_frames", hint="set warmup_frames: 0 to start without") from error
        except OmniError as error:
            message = f"replica group {group} failed its warm-up: {error.message}"
            raise StageStartError(message, where="warmup_frames", hint=error.hint) from error
        logger.info("replica group %d is warm after %d frames", group, frames)


async def _warm_group(
    model: DuplexModel, capabilities: Capabilities, port: ReplicaPort, frames: int, config: SessionConfig
) -> None:
    fence = Fence("warm-up")
    stream = await model.open(config, port, fence)
    try:
        if capabilities.turn_policy == "commit":
            await _take(_answer(stream, capabilities, frames, config, fence))
            return
        silence = np.zeros(capabilities.input_rate * capabilities.unit_ms // 1000, np.float32)
        for _ in range(frames):
            unit = AudioIn(silence, capabilities.input_rate, fence)
            if model.batches:
                await model.step_many([(stream, unit)])
            else:
                await _take(stream.step(unit))
    finally:
        await stream.close()


def _answer(
    stream: DuplexStream, capabilities: Capabilities, frames: int, config: SessionConfig, fence: Fence
) -> AsyncIterator[Output]:
    silence = np.zeros(capabilities.input_rate * 80 // 1000 * frames, np.float32)
    turn = Message("user", (Content("audio", audio=silence),))
    return stream.respond([turn], ResponseOptions("", ("audio",), config.voice, (), "none", None), fence)


async def _take(outputs: AsyncIterator[Output]) -> None:
    async with aclosing(cast("Any", outputs)) as found:
        async for _ in found:
            pass
