"""What the checkpoints of the family accept as speech, as far as they agree; checked in the server's process without torch."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from omni_core.errors import RequestError
from omni_core.modelkit.config_reader import ConfigReader, read_json
from omni_core.speech import PreparedSpeech, ReferenceAudio, SpeechAdapter, SpeechPrompt, SpeechTraits
from omni_core.speech_checks import check_fields, check_instructions, check_reference, check_text, limits, whole_number
from omni_models_moss.checkpoint import MossCheckpoint
from omni_models_moss.codec.location import find_codec_config
from omni_models_moss.pipeline import CODEC_FOLDER

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

MAX_TEXT_CHARS = 8000
"""The engine takes 4096 positions, text and speech together; a longer text would leave no room to speak it."""
MAX_FIELD_CHARS = 500
COMMON = frozenset({"max_new_tokens", "seed", "initial_codec_chunk_frames"})
RECORDING = frozenset({"ref_audio", "ref_text"})
FORM = frozenset({"language", "instructions", "ambient_sound", "sound_event", "quality", "duration_seconds"})
"""Fields of the form (`omni_models_moss.form`)."""
_FREE_TEXT = ("language", "ambient_sound", "sound_event", "quality")


class MossSpeech(SpeechAdapter):
    """Check speech prompts against one checkpoint.

    `ref_audio` alone is a voice to imitate. With `ref_text`, the words it says, it is the beginning of the speech: the model
    continues it, and only what is new is returned. Subclasses say which fields count. Where the options tell the stages of the
    deployment, their `hf_overrides` hold here as in their own processes.

    Raises:
        ConfigError: config.json is missing, or has a field of another type.
    """

    model_name: str
    """What messages call the model."""
    checkpoint_class: ClassVar[type[MossCheckpoint]]
    accepts: frozenset[str]
    """Fields that have an effect."""
    channels: int
    """Channels of the codec where its config is in a repository of its own."""
    samples_per_frame: int

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self._stages = tuple(self.options.get("stages") or ())
        found = self.checkpoint_class
        self.checkpoint = found.of_stage(self._stages[0]) if self._stages else found.read(model.path)

    @cached_property
    def traits(self) -> SpeechTraits:
        """What this checkpoint accepts and makes."""
        facts = self._codec_facts()
        return SpeechTraits(
            sample_rate=facts["sampling_rate"],
            channels=facts["number_channels"],
            accepts=self.accepts,
            clones="ref_audio" in self.accepts,
            reference_channels=facts["number_channels"],
            max_text_chars=MAX_TEXT_CHARS,
            max_instructions_chars=self.options.get("tts_max_instructions_length", MAX_FIELD_CHARS),
            samples_per_frame=facts["downsample_rate"],
        )

    def _codec_facts(self) -> dict[str, int]:
        """Return rate, channels and hop of the codec that decodes; the published values for what its config does not say."""
        facts = {"number_channels": self.channels, "downsample_rate": self.samples_per_frame}
        rate = self.checkpoint.sample_rate
        path = self._codec_config()
        if path is None:
            return {**facts, "sampling_rate": rate}
        read = ConfigReader(read_json(path), str(path), f"{self.model_name}'s codec")
        found = {name: read.optional(name, int, value) for name, value in facts.items()}
        return {**found, "sampling_rate": read.optional("sampling_rate", int, read.optional("sample_rate", int, rate))}

    def _codec_config(self) -> Path | None:
        """Return the config.json of the codec that decodes; None for the published codec in a repository of its own."""
        if self._stages:
            return find_codec_config(self._stages[-1])
        path = self.checkpoint.folder / CODEC_FOLDER / "config.json"
        return path if path.is_file() else None

    def check(self, prompt: SpeechPrompt) -> None:
        """Check what this checkpoint needs beyond a text.

        Raises:
            RequestError: Something is missing; `param` names it.
        """

    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Return the prompt as inputs of the talker.

        Raises:
            RequestError: A field cannot be used; `param` names it.
        """
        traits = self.traits
        self.check_text(prompt.text)
        check_fields(prompt, traits, self.model_name)
        self.check(prompt)
        inputs: dict[str, Any] = {"text": prompt.text, **self._form(prompt), **self._recordings(prompt)}
        inputs["initial_codec_chunk_frames"] = whole_number(
            prompt.initial_codec_chunk_frames, "initial_codec_chunk_frames", 0, traits.max_new_tokens
        )
        sampling = limits(prompt, traits)
        return PreparedSpeech(inputs=inputs, sampling={0: sampling} if sampling else {})

    def check_text(self, text: str) -> None:
        """Check that there is something to speak, and not too much."""
        check_text(text, self.traits)

    def _form(self, prompt: SpeechPrompt) -> dict[str, Any]:
        """Return the values of the form's fields."""
        if not FORM & self.accepts:
            return {}
        found: dict[str, Any] = {name: free_text(name, getattr(prompt, name)) for name in _FREE_TEXT}
        found["instructions"] = check_instructions(prompt.instructions, self.traits)
        found["tokens"] = self._tokens(prompt.duration_seconds)
        found["language"] = language_name(found["language"])
        return found

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

    def _recordings(self, prompt: SpeechPrompt) -> dict[str, Any]:
        if prompt.ref_audio is None:
            if prompt.ref_text is not None:
                raise RequestError(
                    "'ref_text' has no effect without 'ref_audio'", param="ref_text", hint="send the recording that says it"
                )
            return {}
        words = (prompt.ref_text or "").strip()
        if prompt.ref_text is not None and not words:
            raise RequestError("'ref_text' has no words", param="ref_text", hint="leave it out to imitate the voice only")
        if len(words) > MAX_TEXT_CHARS:
            raise RequestError(
                f"'ref_text' has {len(words)} characters, but at most {MAX_TEXT_CHARS} are accepted",
                param="ref_text",
                hint="send the words of the recording alone",
            )
        found = {**self.recording("ref_audio", prompt.ref_audio), "continues": bool(words)}
        return found | ({"text": join_texts(words, prompt.text)} if words else {})

    def recording(self, name: str, audio: ReferenceAudio) -> dict[str, Any]:
        """Return a recording as `Recordings` takes it.

        Raises:
            RequestError: It cannot be used; `param` is its name.
        """
        try:
            samples = check_reference(audio, self.traits)
        except RequestError as error:
            raise RequestError(error.message, where=error.where, hint=error.hint, param=name) from error
        return {name: samples, f"{name}_rate": int(audio.sample_rate)}


def join_texts(first: str, second: str) -> str:
    """Return two texts as one, with a space between them unless one is there or the script has none."""
    if first[-1].isspace() or second[0].isspace():
        return first + second
    is_wide = any(unicodedata.east_asian_width(sign) in ("W", "F") for sign in (first[-1], second[0]))
    return first + ("" if is_wide else " ") + second


def language_name(asked: str | None) -> str | None:
    """Return a language as the model knows it: `English`. It was trained on the names of 31; any name is passed on."""
    if asked is None or asked.lower() == "auto":
        return None
    return asked.title() if asked.islower() else asked


def free_text(name: str, value: str | None) -> str | None:
    """Return a field that becomes part of the prompt, None for a blank one."""
    if value is not None and (len(value) > MAX_FIELD_CHARS or not value.isprintable()):
        raise RequestError(
            f"{name!r} must be one line of at most {MAX_FIELD_CHARS} characters", param=name, hint="describe it in a few words"
        )
    return (value or "").strip() or None
