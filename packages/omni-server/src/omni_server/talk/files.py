"""Conversations with files: what is said is read from one, what is answered is written to another."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from omni_core.errors import ConfigError, OmniError
from omni_server.talk.sound import BLOCK, RATE, Played


class FileSource:
    """Read an audio file of any rate; of several channels the mean is said.

    Args:
        path: The file.
        is_paced: Whether it is said as fast as it plays.

    Raises:
        ConfigError: It is not there, or holds no audio.
    """

    is_endless = False

    def __init__(self, path: Path, *, is_paced: bool = True) -> None:
        self.is_paced = is_paced
        self._data = _read(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Need nothing closed."""

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield blocks, the last one filled up with silence."""
        size = 2 * BLOCK
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, at in enumerate(range(0, len(self._data), size)):
            if self.is_paced:
                await asyncio.sleep(max(0.0, began + number * BLOCK / RATE - loop.time()))
            yield self._data[at : at + size].ljust(size, b"\0")


def _read(path: Path) -> bytes:
    import numpy as np
    import soundfile
    import soxr

    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.LibsndfileError) as error:
        raise ConfigError(
            f"{path} cannot be read as audio: {error}", where="--input", hint="give a WAV, FLAC or MP3"
        ) from error
    if not len(samples):
        raise ConfigError(f"{path} holds no audio", where="--input", hint="give a file with something in it")
    mono = soxr.resample(samples.mean(axis=1), rate, RATE)
    data: bytes = np.rint(np.clip(mono, -1, 1) * 32767).astype("<i2").tobytes()
    return data


class FileSink:
    """Keep the answers, one after the other, and write them as WAV in the end.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write the file if there is anything to write, also after a failure."""
        if not self._data:
            return
        try:
            with wave.open(str(self._path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes(bytes(self._data))
        except OSError as problem:
            raise OmniError(f"{self._path} cannot be written: {problem.strerror}", where="--output") from problem

    def play(self, pcm: bytes, item_id: str) -> None:
        """Keep more of an answer."""
        self._data += pcm

    def stop(self) -> Played | None:
        """Keep what came: nobody listens, so nothing of it was left unheard."""
        return None
