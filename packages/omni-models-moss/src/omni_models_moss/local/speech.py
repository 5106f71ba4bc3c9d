"""What MOSS-TTS Local and Nano accept as speech, checked in the server's process without torch.

AP-02 says that Local requires `ref_audio`. The reference implementation speaks without one too, in a voice of its own choosing,
and golden cases do; so here a recording is welcome and not required.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.speech import COMMON, FORM, RECORDING, MossSpeech

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo


class LocalSpeech(MossSpeech):
    """Check speech prompts against one MOSS-TTS Local checkpoint."""

    model_name = "MOSS-TTS Local model"
    channels = 2
    samples_per_frame = 3840

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self.checkpoint = Checkpoint.read(model.path)

    @property
    def accepts(self) -> frozenset[str]:
        """Fields that have an effect."""
        return COMMON | RECORDING | FORM

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.folder

    @property
    def sample_rate(self) -> int:
        """Hz."""
        return self.checkpoint.sample_rate


class NanoSpeech(LocalSpeech):
    """Check speech prompts against one MOSS-TTS Nano checkpoint, which has learned the form with `None` in every field."""

    model_name = "MOSS-TTS Nano model"

    @property
    def accepts(self) -> frozenset[str]:
        """Fields that have an effect."""
        return COMMON | RECORDING
