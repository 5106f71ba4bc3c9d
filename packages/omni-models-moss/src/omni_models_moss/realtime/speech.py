"""What MOSS-TTS Realtime accepts as speech, checked in the server's process without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.speech import COMMON, MossSpeech

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo


class RealtimeSpeech(MossSpeech):
    """Check speech prompts against one checkpoint. A recording is a voice to imitate; what it says is not asked for."""

    model_name = "MOSS-TTS Realtime model"
    channels = 1
    samples_per_frame = 1920

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self.checkpoint = Checkpoint.read(model.path)

    @property
    def accepts(self) -> frozenset[str]:
        """Fields that have an effect."""
        return COMMON | {"ref_audio"}

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.folder

    @property
    def sample_rate(self) -> int:
        """Hz."""
        return self.checkpoint.sample_rate
