"""A session's ear: audio at the model's rate in, where speech begins and ends out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_duplex.audio.framer import Framer
from omni_duplex.audio.resample import Resampler
from omni_duplex.model import Capabilities, Samples, SessionConfig
from omni_duplex.session import events as ev
from omni_duplex.vad.endpoint import Endpointer
from omni_duplex.vad.silero import FRAME, RATE, SileroVad, load
from omni_duplex.vad.weights import find_weights


class SpeechEar:
    """Listen with Silero's network where turn detection is on.

    Args:
        vad: Judges frames.
        rate: Hz of the audio that comes.
        config: The session's settings.
    """

    def __init__(self, vad: SileroVad, rate: int, config: SessionConfig) -> None:
        self._vad = vad
        self._resampler = Resampler(rate, RATE)
        self._framer = Framer(FRAME)
        self._endpointer: Endpointer | None = None
        self._skipped = 0
        """Frames that went by while detection was off."""
        self.configure(config)

    def configure(self, config: SessionConfig) -> None:
        """Take changed settings."""
        detection = config.turn_detection
        if detection is None:
            self._endpointer = None
        elif self._endpointer is None:
            self._endpointer = Endpointer(detection, FRAME * 1000 // RATE)
            self._endpointer.skip(self._skipped)
        else:
            self._endpointer.configure(detection)

    def reset(self) -> None:
        """Forget speech that is under way. The timeline goes on."""
        self._vad.reset()
        if self._endpointer is not None:
            self._endpointer.reset()

    def push(self, pcm: Samples) -> Sequence[ev.SpeechStarted | ev.SpeechStopped]:
        """Hear more audio and return where speech began and ended."""
        found: list[ev.SpeechStarted | ev.SpeechStopped] = []
        for frame in self._framer.push(self._resampler.push(pcm)):
            self._skipped += 1
            if self._endpointer is None:
                continue
            boundary = self._endpointer.push(self._vad.judge(frame))
            if boundary is not None:
                found.append(ev.SpeechStarted(boundary.at_ms) if boundary.began else ev.SpeechStopped(boundary.at_ms))
        return found


def silero_ears(model_path: str | None) -> Callable[[Capabilities, SessionConfig], SpeechEar]:
    """Return what makes an ear for each session of a process; the network is loaded now.

    Args:
        model_path: `duplex_session.server_vad_model_path`.

    Raises:
        ConfigError, DependencyError: The weights or onnxruntime are not there.
    """
    network = load(find_weights(model_path))
    return lambda capabilities, config: SpeechEar(SileroVad(network), capabilities.input_rate, config)
