"""Conversations with devices: the microphone and the speaker, through the package sounddevice."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from omni_core.errors import DependencyError, OmniError
from omni_server.talk.sound import BLOCK, RATE, Played

MAX_WAITING = 250
"""Blocks of the microphone that may wait: ten seconds, after which the oldest are dropped."""


def _sounddevice() -> Any:
    """Return the package.

    Raises:
        DependencyError: It, or the PortAudio library that it needs, is not there.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        raise DependencyError(
            f"the microphone and the speaker cannot be used: {error}",
            where="omni talk",
            hint="pip install 'omni-server[talk]' (Debian: apt-get install libportaudio2), or use --input and --output",
        ) from error
    return sounddevice


def _opened(kind: str, **options: Any) -> Any:
    """Return a started stream of a device.

    Raises:
        OmniError: There is no such device, or it cannot do this.
    """
    package = _sounddevice()
    try:
        stream = getattr(package, kind)(samplerate=RATE, channels=1, dtype="int16", blocksize=BLOCK, **options)
        stream.start()
    except package.PortAudioError as error:
        flag = "--input" if kind == "RawInputStream" else "--output"
        raise OmniError(f"the default device cannot be opened: {error}", where="omni talk", hint=f"give {flag} FILE") from error
    return stream


class Microphone:
    """Hear the default microphone. What it gives waits while the server does not take it, ten seconds at most."""

    is_endless = True
    is_paced = True

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stream: Any = None

    def __enter__(self) -> Self:
        self._stream = _opened("RawInputStream", callback=self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop to listen."""
        self._stream.close()

    def _heard(self, data: Any, frames: int, time: Any, status: Any) -> None:
        """Take a block; called by the device's own thread."""
        block = bytes(data)
        self._loop.call_soon_threadsafe(self._keep, block)

    def _keep(self, block: bytes) -> None:
        self._waiting.append(block)
        self._wake.set()

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield what is heard, for ever."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            yield self._waiting.popleft()


class Speaker:
    """Play answers on the default speaker, and know how much of the one under way was played."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._item_id = ""
        self._played = 0
        """Bytes of the answer under way."""
        self._stream: Any = None

    def __enter__(self) -> Self:
        self._stream = _opened("RawOutputStream", callback=self._wanted)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop to play."""
        self._stream.close()

    def _wanted(self, out: Any, frames: int, time: Any, status: Any) -> None:
        """Give the device its next block; called by its own thread."""
        size = 2 * frames
        with self._lock:
            found = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._played += len(found)
        out[:] = found.ljust(size, b"\0")

    def play(self, pcm: bytes, item_id: str) -> None:
        """Let more of an answer be played."""
        with self._lock:
            if item_id != self._item_id:
                # What waits of the answer before is played first and counts as this one's: it is at most a moment.
                self._item_id, self._played = item_id, -len(self._waiting)
            self._waiting += pcm

    def stop(self) -> Played | None:
        """Play no more of what came, and return how much of the answer was heard."""
        with self._lock:
            if not self._waiting:
                return None
            self._waiting.clear()
            return Played(self._item_id, max(0, self._played) * 1000 // (2 * RATE))
