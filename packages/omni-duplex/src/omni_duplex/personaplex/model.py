"""PersonaPlex as a duplex model: one fed request for each session, a unit of audio in, a unit out. Imports nothing heavy.

The network makes audio all the time, also while it says nothing. What a client gets is turns: one begins with a frame that has
a word or can be heard, and ends when so many frames had neither. Silence between turns is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.errors import OmniError, ServiceError
from omni_duplex.errors import DuplexError
from omni_duplex.model import (
    AudioIn,
    AudioOut,
    Capabilities,
    DuplexModel,
    DuplexStream,
    Fence,
    Listen,
    Output,
    ReplicaPort,
    SessionConfig,
    StreamingRequest,
    TextOut,
    TurnEnd,
)
from omni_duplex.personaplex.shape import FRAME_MS, SAMPLE_RATE, Shape
from omni_duplex.personaplex.voices import voice_names

if TYPE_CHECKING:
    from omni_core.request import OmniOutput
    from omni_core.stage import ResolvedPipeline

SESSION_TIMEOUT_S = 24 * 3600.0
"""Longest session."""
AUDIBLE_RMS = 0.01
"""From here on a frame is heard: -40 dB."""
PAUSE_FRAMES = 6
"""Silent frames that end a turn: 480 ms."""
MAX_INSTRUCTIONS = 20_000
_REASON_TIMEOUT_S = 1.0


class TurnGate:
    """Cut the agent's frames into turns.

    Args:
        silent_tokens: Text tokens without a word.
    """

    def __init__(self, silent_tokens: frozenset[int]) -> None:
        self._silent_tokens = silent_tokens
        self.speaks = False
        self._pause = 0
        self._is_muted = False

    def mute(self) -> None:
        """Leave out what is being said, up to the next pause: the network cannot be stopped, but need not be heard."""
        self._is_muted = self._is_muted or self.speaks
        self.speaks = False

    def take(self, token: int, text: str, pcm: np.ndarray[Any, np.dtype[np.float32]], fence: Fence) -> list[Output]:
        """Return what a frame is to the client."""
        is_word = token not in self._silent_tokens
        is_silent = not is_word and float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64)))) < AUDIBLE_RMS
        self._pause = self._pause + 1 if is_silent else 0
        if self._is_muted:
            self._is_muted = self._pause < PAUSE_FRAMES
            return [Listen(fence)]
        if not self.speaks and is_silent:
            return [Listen(fence)]
        self.speaks = self._pause < PAUSE_FRAMES
        said: list[Output] = [TextOut(text, fence)] if text else []
        said.append(AudioOut(pcm, SAMPLE_RATE, fence))
        return said if self.speaks else [*said, TurnEnd(fence)]


class PersonaPlexStream(DuplexStream):
    """One session: a request that is fed a frame at a time.

    Args:
        replica: Where the session is.
        config: What it begins with.
        fence: Of its first outputs.
        silent_tokens: Text tokens without a word.
    """

    def __init__(self, replica: ReplicaPort, config: SessionConfig, fence: Fence, silent_tokens: frozenset[int]) -> None:
        self._replica = replica
        self._opening = _opening(config)
        self._fence = fence
        self._gate = TurnGate(silent_tokens)
        self._one_at_a_time = asyncio.Lock()
        self._heard = 0
        self._request: StreamingRequest
        self._frames: _Frames
        self._open()

    def _open(self) -> None:
        self._request = self._replica.open(self._opening, timeout_s=SESSION_TIMEOUT_S)
        self._frames = _Frames(self._request.outputs())

    async def step(self, unit: AudioIn) -> AsyncIterator[Output]:
        """Hear a frame and yield what the agent says in it."""
        async with self._one_at_a_time:
            self._heard += 1
            self._fence = _later(self._fence, unit.fence)
            pcm = np.ascontiguousarray(unit.pcm, np.float32)
            token, text, audio = await self._frames.answer(self._request.push({"audio": pcm}))
            found = self._gate.take(token, text, audio, self._fence)
        for output in found:
            yield output
            if isinstance(output, TurnEnd):
                self._fence = replace(self._fence, turn=self._fence.turn + 1)

    async def cancel(self, new_fence: Fence) -> None:
        """Leave out what is being said."""
        self._gate.mute()
        self._fence = _later(self._fence, new_fence)

    def validate_update(self, old: SessionConfig, new: SessionConfig) -> None:
        """Refuse another voice and other instructions once the network has heard something.

        Raises:
            DuplexError: It has, and one of them would change.
        """
        if not self._heard:
            return
        for name in ("voice", "instructions"):
            if getattr(old, name) != getattr(new, name):
                raise DuplexError(
                    f"{name}_update_after_audio_unsupported",
                    f"the {name} cannot change once there was audio",
                    f"session.{name}",
                    hint="open a new session",
                )

    async def configure(self, config: SessionConfig) -> None:
        """Begin again with another voice or other instructions."""
        async with self._one_at_a_time:
            opening = _opening(config)
            if opening == self._opening or self._heard:
                return
            await self._stop()
            self._opening = opening
            self._open()

    async def close(self) -> None:
        """End the request."""
        await self._stop()

    async def _stop(self) -> None:
        await self._frames.stop()
        await self._request.close()


class _Frames:
    """What a request answers: pieces of two stages for each frame, put together again.

    Args:
        outputs: The request's outputs, not begun.
    """

    def __init__(self, outputs: AsyncIterator[OmniOutput]) -> None:
        self._codes: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._audio: asyncio.Queue[np.ndarray[Any, np.dtype[np.float32]]] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read(outputs))

    async def _read(self, outputs: AsyncIterator[OmniOutput]) -> None:
        async for output in outputs:
            if output.type == "audio" and len(output.data):
                self._audio.put_nowait(output.data[:, 0])
            elif "token" in output.tensors:
                self._codes.put_nowait((int(output.tensors["token"][0]), output.data))

    async def answer(self, pushing: Any) -> tuple[int, str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Push a frame and return the token, the text and the audio of its answer.

        Raises:
            OmniError: The request has ended.
        """
        work = asyncio.ensure_future(self._answer(pushing))
        try:
            await asyncio.wait({work, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or work.exception() is not None:
                # Why the request has ended is what its outputs say; that it has is all that pushing knows.
                await asyncio.wait({self._reading}, timeout=_REASON_TIMEOUT_S)
                if self._reading.done():
                    self._reading.result()
            if work.done():
                return work.result()
            raise ServiceError("the session's request has ended", hint="open a new session")
        finally:
            work.cancel()

    async def _answer(self, pushing: Any) -> tuple[int, str, np.ndarray[Any, np.dtype[np.float32]]]:
        await pushing
        token, text = await self._codes.get()
        return token, text, await self._audio.get()

    async def stop(self) -> None:
        """Stop reading."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError, OmniError):
            await self._reading


class PersonaPlex(DuplexModel):
    """The model in a frontend process.

    Args:
        pipeline: The deployment, whose checkpoint has the voices.
    """

    plugin_id = "personaplex"
    takes_pipeline = True

    def __init__(self, pipeline: ResolvedPipeline) -> None:
        from omni_core.model_info import read_model_info

        folder = Path(pipeline.model)
        shape = Shape.of_config(read_model_info(folder).config, str(folder / "config.json"))
        self._silent_tokens = frozenset({shape.text_pad, shape.text_word_end})
        self._voices = voice_names(folder)

    def capabilities(self, replica_cap: int) -> Capabilities:
        """Return that it speaks when it wants to, cannot be interrupted, and is lost with its connection."""
        return Capabilities(
            turn_policy="model",
            unit_ms=FRAME_MS,
            input_rate=SAMPLE_RATE,
            output_rate=SAMPLE_RATE,
            barge_in=False,
            truncate=False,
            session_resume=False,
            sessions_per_replica=replica_cap,
            voices=self._voices,
        )

    def validate(self, config: SessionConfig) -> None:
        """Check the voice and the instructions.

        Raises:
            DuplexError: There is no such voice, the instructions are too long, or `extra` has a field.
        """
        if config.voice is not None and config.voice not in self._voices:
            known = ", ".join(self._voices) or "no voices"
            message = f"the voice {config.voice[:100]!r} is unknown; the model has {known}"
            raise self.error("unknown_voice", message, "session.audio.output.voice")
        if len(config.instructions) > MAX_INSTRUCTIONS:
            message = f"the instructions have more than {MAX_INSTRUCTIONS} characters"
            raise self.error("instructions_too_long", message, "session.instructions")
        if config.extra:
            name = next(iter(config.extra))
            raise self.error("unknown_parameter", f"the model has no setting {name!r}", f"session.{name}")

    async def open(self, config: SessionConfig, replica: ReplicaPort, fence: Fence) -> DuplexStream:
        """Begin a session's request, which reads its prompt at once."""
        return PersonaPlexStream(replica, config, fence, self._silent_tokens)


def _opening(config: SessionConfig) -> Mapping[str, Any]:
    return {"instructions": config.instructions, **({"voice": config.voice} if config.voice is not None else {})}


def _later(one: Fence, other: Fence) -> Fence:
    """Return the later of two fences; a session hears of a turn's end after the model has said so."""
    return max(one, other, key=lambda fence: (fence.epoch, fence.turn))
