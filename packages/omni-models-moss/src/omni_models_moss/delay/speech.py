"""What the checkpoints of the delay pattern accept as speech (AP-02), checked in the server's process without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.errors import RequestError
from omni_core.speech import SpeechPrompt
from omni_models_moss.delay.checkpoint import Checkpoint, Kind
from omni_models_moss.speech import COMMON, FORM, RECORDING, MossSpeech

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

_ACCEPTS = {
    Kind.TTS: COMMON | FORM,
    Kind.DIALOGUE: COMMON | FORM | {"ref_audio_2"},
    Kind.VOICE: COMMON | {"instructions", "language", "duration_seconds"},
    Kind.SOUND: COMMON | {"ambient_sound", "sound_event", "quality", "duration_seconds"},
}
"""Fields that have an effect, beside those of a recording, which `Checkpoint.hears` is about."""
_NEEDS = {
    Kind.DIALOGUE: ("ref_audio", "send a recording of the first speaker, [S1] in the text"),
    Kind.VOICE: ("instructions", "describe the voice: a warm female voice with an American accent"),
    Kind.SOUND: ("ambient_sound", "describe the sound: rain on a tin roof"),
}


class DelaySpeech(MossSpeech):
    """Check speech prompts against one checkpoint; what it is for follows from its name."""

    checkpoint_class = Checkpoint
    checkpoint: Checkpoint
    channels = 1
    samples_per_frame = 1920

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self.kind = self.checkpoint.kind
        self.model_name = f"{self.kind} model"
        self.accepts = _ACCEPTS[self.kind] | (RECORDING if self.checkpoint.hears else frozenset())

    def check_text(self, text: str) -> None:
        """Check that there is something to speak, and not too much; sounds need no text."""
        if self.kind is not Kind.SOUND or text.strip():
            super().check_text(text)

    def check(self, prompt: SpeechPrompt) -> None:
        """Check what this checkpoint needs beyond a text."""
        if self.kind not in _NEEDS:
            return
        name, hint = _NEEDS[self.kind]
        value = getattr(prompt, name)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise RequestError(f"{self.model_name}s need {name!r}", param=name, hint=hint)

    def _recordings(self, prompt: SpeechPrompt) -> dict[str, Any]:
        found = super()._recordings(prompt)
        if prompt.ref_audio_2 is None:
            return found
        if found.get("continues"):
            raise RequestError(
                "a recording that is continued cannot come with 'ref_audio_2'",
                param="ref_audio_2",
                hint="leave out 'ref_text' to imitate both voices",
            )
        return found | self.recording("ref_audio_2", prompt.ref_audio_2)
