"""What MOSS-TTS Local and Nano accept as speech, checked in the server's process without torch.

AP-02 says that Local requires `ref_audio`. The reference implementation speaks without one too, in a voice of its own choosing,
and golden cases do; so here a recording is welcome and not required.
"""

from __future__ import annotations

from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.speech import COMMON, FORM, RECORDING, MossSpeech


class LocalSpeech(MossSpeech):
    """Check speech prompts against one MOSS-TTS Local checkpoint."""

    model_name = "MOSS-TTS Local model"
    checkpoint_class = Checkpoint
    accepts = COMMON | RECORDING | FORM
    channels = 2
    samples_per_frame = 3840


class NanoSpeech(LocalSpeech):
    """Check speech prompts against one MOSS-TTS Nano checkpoint, which has learned the form with `None` in every field."""

    model_name = "MOSS-TTS Nano model"
    accepts = COMMON | RECORDING
