"""What conversations Qwen3-Omni answers, from its config.json. Read in the server's process; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.chat import ChatTraits

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

INPUTS = frozenset({"text", "image", "audio", "video"})
SAMPLE_RATE = 24_000
_SAMPLES_PER_FRAME = 1920
_DEFAULT_VOICE = "ethan"


def chat_traits(model: ModelInfo) -> ChatTraits:
    """Return the traits of a checkpoint that speaks. Its voices are the talker's `speaker_id`."""
    talker: Mapping[str, Any] = model.config.get("talker_config") or {}
    voices = tuple(str(name) for name in talker.get("speaker_id") or ())
    return ChatTraits(INPUTS, voices, default_voice(voices, _DEFAULT_VOICE), SAMPLE_RATE, samples_per_frame=_SAMPLES_PER_FRAME)


def silent_traits(model: ModelInfo) -> ChatTraits:
    """Return the traits of the thinker alone."""
    return ChatTraits(INPUTS)


def default_voice(voices: tuple[str, ...], preferred: str) -> str | None:
    """Return the preferred voice, matched without case, or else the first one."""
    return next((voice for voice in voices if voice.lower() == preferred), voices[0] if voices else None)
