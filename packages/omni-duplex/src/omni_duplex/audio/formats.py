"""Audio as it is on the wire: which formats there are, and a stream of each in both directions."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from omni_duplex.audio import g711
from omni_duplex.audio.resample import Resampler
from omni_duplex.errors import DuplexError
from omni_duplex.model import Samples

PCM_RATES = (24_000, 16_000, 8_000, 48_000)
"""Rates of `audio/pcm`: that of the realtime API, and those that others use."""
MAX_APPEND_BYTES = 15 * 1024**2
"""Most bytes of audio in one message, as base64."""


@dataclass(frozen=True)
class AudioFormat:
    """A form of mono audio."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int = 24_000
    """Hz."""

    @property
    def law(self) -> g711.Law | None:
        """The law of telephone audio; None for PCM."""
        return {"audio/pcmu": "ulaw", "audio/pcma": "alaw"}.get(self.type)  # type: ignore[return-value]

    def shown(self) -> dict[str, Any]:
        """Return it as the realtime API has it."""
        return {"type": self.type, "rate": self.rate} if self.law is None else {"type": self.type}


def parse_format(value: object, param: str) -> AudioFormat:
    """Return a format of the realtime API.

    Raises:
        DuplexError: There is no such format; the message lists those that are.
    """
    names = ("audio/pcm", "audio/pcmu", "audio/pcma")
    if not isinstance(value, dict) or value.get("type") not in names:
        raise _unsupported(f"{value!r} is no audio format", param)
    if unknown := set(value) - {"type", "rate"}:
        raise _unsupported(f"an audio format has no field {sorted(unknown)[0]!r}", param)
    kind = value["type"]
    rate = value.get("rate", 24_000 if kind == "audio/pcm" else 8_000)
    rates = PCM_RATES if kind == "audio/pcm" else (8_000,)
    if isinstance(rate, bool) or rate not in rates:
        raise _unsupported(f"{kind} has no rate {rate!r}; it has {', '.join(map(str, rates))}", f"{param}.rate")
    return AudioFormat(kind, int(rate))


def _unsupported(message: str, param: str) -> DuplexError:
    return DuplexError(
        "unsupported_audio_format", message, param, hint="use audio/pcm with rate 24000, audio/pcmu or audio/pcma"
    )


class Decoder:
    """Turn a client's audio into samples at the model's rate. How the stream was cut changes nothing.

    Args:
        form: The client's format.
        rate: Hz of the model's input.
    """

    def __init__(self, form: AudioFormat, rate: int) -> None:
        self.form = form
        self._half = b""
        self._resampler = Resampler(form.rate, rate)

    def push(self, text: object, param: str = "audio") -> Samples:
        """Return the samples that base64 text brings; the odd byte of a sample waits for the next.

        Raises:
            DuplexError: It is no base64, or too much at once.
        """
        if not isinstance(text, str):
            raise DuplexError("invalid_value", f"{param} must be base64 text, not {type(text).__name__}", param)
        if len(text) > MAX_APPEND_BYTES:
            raise DuplexError("event_too_large", f"{len(text)} bytes of audio are more than {MAX_APPEND_BYTES}", param)
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise DuplexError("bad_audio", f"{param} is no base64: {error}", param) from error
        return self.push_bytes(data)

    def push_bytes(self, data: bytes) -> Samples:
        """Return the samples that bytes bring."""
        law = self.form.law
        if law is not None:
            samples = g711.decode(data, law)
        else:
            data = self._half + data
            whole = len(data) // 2 * 2
            self._half = data[whole:]
            samples = np.frombuffer(data[:whole], "<i2")
        return self._resampler.push(samples.astype(np.float32) / np.float32(32768))


class Encoder:
    """Turn a model's samples into a client's audio.

    Args:
        form: The client's format.
        rate: Hz of the model's output.
    """

    def __init__(self, form: AudioFormat, rate: int) -> None:
        self.form = form
        self.rate = rate
        self._resampler = Resampler(rate, form.rate)

    def push(self, pcm: Samples, *, last: bool = False) -> bytes:
        """Return the bytes that samples bring; `last` brings what the resampler held back."""
        return to_bytes(self._resampler.push(pcm, last=last), self.form)


def to_bytes(pcm: Samples, form: AudioFormat) -> bytes:
    """Return samples at the format's rate as its bytes, clipped to [-1, 1]."""
    whole = np.rint(np.clip(np.nan_to_num(pcm), -1.0, 1.0) * 32767).astype("<i2")
    law = form.law
    return g711.encode(cast("Any", whole), law) if law is not None else whole.tobytes()


def as_base64(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode()
