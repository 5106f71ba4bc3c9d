"""What MOSS-TTS Realtime accepts as speech, checked in the server's process without torch."""

from __future__ import annotations

from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.speech import COMMON, MossSpeech


class RealtimeSpeech(MossSpeech):
    """Check speech prompts against one checkpoint. A recording is a voice to imitate; what it says is not asked for."""

    model_name = "MOSS-TTS Realtime model"
    checkpoint_class = Checkpoint
    accepts = COMMON | {"ref_audio"}
    channels = 1
    samples_per_frame = 1920
