"""What conversations Qwen3-Omni answers, from its config.json. Read in the server's process; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.chat import ChatTraits
from omni_core.modelkit.config_reader import ConfigReader

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

MODEL = "Qwen3-Omni"
"""What messages call it."""
INPUTS = frozenset({"text", "image", "audio", "video"})
SAMPLE_RATE = 24_000
_SAMPLES_PER_FRAME = 1920
DEFAULT_VOICE = "ethan"
"""The reference's; a checkpoint without it speaks with its first voice."""


def chat_traits(model: ModelInfo) -> ChatTraits:
    """Return the traits of a checkpoint that speaks. Its voices are the talker's `speaker_id`.

    Raises:
        ConfigError: Its config.json has something else there.
    """
    read = ConfigReader(model.config, str(model.path / "config.json"), MODEL)
    has_talker = model.config.get("talker_config") is not None
    voices = tuple(read.section("talker_config").ids("speaker_id", {})) if has_talker else ()
    return ChatTraits(INPUTS, voices, default_voice(voices, DEFAULT_VOICE), SAMPLE_RATE, samples_per_frame=_SAMPLES_PER_FRAME)


def silent_traits(model: ModelInfo) -> ChatTraits:
    """Return the traits of the thinker alone."""
    return ChatTraits(INPUTS)


def default_voice(voices: tuple[str, ...], preferred: str) -> str | None:
    """Return the preferred voice, matched without case, or else the first one."""
    return next((voice for voice in voices if voice.lower() == preferred), voices[0] if voices else None)
