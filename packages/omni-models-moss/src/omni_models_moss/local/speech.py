"""What a MOSS-TTS Local checkpoint accepts as speech, checked in the server's process without torch.

AP-02 says that this model requires `ref_audio`. The reference implementation speaks without one too, in a voice of its own
choosing, and golden cases do; so here a recording is welcome and not required.
"""

from __future__ import annotations

import json
import unicodedata
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omni_core.errors import RequestError
from omni_core.speech import PreparedSpeech, SpeechAdapter, SpeechPrompt, SpeechTraits
from omni_core.speech_checks import check_fields, check_instructions, check_reference, check_text, limits, whole_number
from omni_models_moss.codec.location import CODEC_FOLDER
from omni_models_moss.local.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_core.model_info import ModelInfo

_CHANNELS = 2
_SAMPLES_PER_FRAME = 3840
_MAX_TEXT_CHARS = 8000
"""The engine takes 4096 positions, text and speech together; a longer text would leave no room to speak it."""
_MAX_FIELD_CHARS = 500
_ACCEPTS = frozenset(
    {
        "language",
        "instructions",
        "ref_audio",
        "ref_text",
        "ambient_sound",
        "sound_event",
        "quality",
        "duration_seconds",
        "max_new_tokens",
        "seed",
        "initial_codec_chunk_frames",
    }
)
_FREE_TEXT = ("language", "ambient_sound", "sound_event", "quality")


class LocalSpeech(SpeechAdapter):
    """Check speech prompts against one MOSS-TTS Local checkpoint.

    `ref_audio` alone is a voice to imitate. With `ref_text`, the words it says, it is the beginning of the speech: the model
    continues it, and only what is new is returned.
    """

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self.checkpoint = Checkpoint.read(model.path)

    @cached_property
    def traits(self) -> SpeechTraits:
        """What this checkpoint accepts and makes."""
        facts = self._codec_facts()
        return SpeechTraits(
            sample_rate=self.checkpoint.sample_rate,
            channels=facts["number_channels"],
            accepts=_ACCEPTS,
            clones=True,
            reference_channels=facts["number_channels"],
            max_text_chars=_MAX_TEXT_CHARS,
            max_instructions_chars=self.options.get("tts_max_instructions_length", _MAX_FIELD_CHARS),
            samples_per_frame=facts["downsample_rate"],
        )

    def _codec_facts(self) -> dict[str, int]:
        """Return channels and hop of the codec; the published values where its config is in a repository of its own."""
        facts = {"number_channels": _CHANNELS, "downsample_rate": _SAMPLES_PER_FRAME}
        try:
            raw = json.loads((self.checkpoint.folder / CODEC_FOLDER / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return facts
        return {name: int(raw.get(name, value)) for name, value in facts.items()}

    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Return the prompt as inputs of the talker.

        Raises:
            RequestError: A field cannot be used; `param` names it.
        """
        traits = self.traits
        check_text(prompt.text, traits)
        check_fields(prompt, traits, "MOSS-TTS Local model")
        inputs: dict[str, Any] = {
            "text": prompt.text,
            "instructions": check_instructions(prompt.instructions, traits),
            "tokens": self._tokens(prompt.duration_seconds),
            **{name: _free_text(name, getattr(prompt, name)) for name in _FREE_TEXT},
            "initial_codec_chunk_frames": whole_number(
                prompt.initial_codec_chunk_frames, "initial_codec_chunk_frames", 0, traits.max_new_tokens
            ),
        }
        inputs["language"] = _language(inputs["language"])
        sampling = limits(prompt, traits)
        return PreparedSpeech(inputs=inputs | self._recording(prompt), sampling={0: sampling} if sampling else {})

    def _tokens(self, seconds: float | None) -> int | None:
        """Return a duration in frames, which the model calls tokens."""
        if seconds is None:
            return None
        frames = seconds * self.traits.sample_rate / self.traits.samples_per_frame
        longest = self.traits.max_new_tokens * self.traits.samples_per_frame / self.traits.sample_rate
        if not 0 < seconds <= longest:
            raise RequestError(
                f"'duration_seconds' must be more than 0 and at most {longest:g}, not {seconds!r}", param="duration_seconds"
            )
        return max(round(frames), 1)

    def _recording(self, prompt: SpeechPrompt) -> dict[str, Any]:
        if prompt.ref_audio is None:
            if prompt.ref_text is not None:
                raise RequestError(
                    "'ref_text' has no effect without 'ref_audio'", param="ref_text", hint="send the recording that says it"
                )
            return {}
        words = (prompt.ref_text or "").strip()
        if prompt.ref_text is not None and not words:
            raise RequestError("'ref_text' has no words", param="ref_text", hint="leave it out to imitate the voice only")
        samples = check_reference(prompt.ref_audio, self.traits)
        found = {"ref_audio": samples, "ref_sample_rate": int(prompt.ref_audio.sample_rate), "continues": bool(words)}
        return found | ({"text": join_texts(words, prompt.text)} if words else {})


def join_texts(first: str, second: str) -> str:
    """Return two texts as one, with a space between them unless one is there or the script has none."""
    if first[-1].isspace() or second[0].isspace():
        return first + second
    is_wide = any(unicodedata.east_asian_width(sign) in ("W", "F") for sign in (first[-1], second[0]))
    return first + ("" if is_wide else " ") + second


def _language(asked: str | None) -> str | None:
    """Return a language as the model knows it: `English`. It was trained on the names of 31; any name is passed on."""
    if asked is None or asked.lower() == "auto":
        return None
    return asked.title() if asked.islower() else asked


def _free_text(name: str, value: str | None) -> str | None:
    """Return a field that becomes part of the prompt, None for a blank one."""
    if value is not None and (len(value) > _MAX_FIELD_CHARS or not value.isprintable()):
        raise RequestError(
            f"{name!r} must be one line of at most {_MAX_FIELD_CHARS} characters", param=name, hint="describe it in a few words"
        )
    return (value or "").strip() or None
