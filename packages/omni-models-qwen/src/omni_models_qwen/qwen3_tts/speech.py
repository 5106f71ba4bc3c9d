"""What a Qwen3-TTS checkpoint accepts as speech: the rules of AP-02, checked in the server's process without torch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.errors import ConfigError, RequestError
from omni_core.modelkit.config_reader import read_json
from omni_core.speech import PreparedSpeech, SpeechAdapter, SpeechPrompt, SpeechTraits
from omni_core.speech_checks import check_fields, check_instructions, check_reference, check_text, limits, whole_number
from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint
from omni_models_qwen.qwen3_tts.pipeline import CODEC_FOLDER, QWEN3_TTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_core.model_info import ModelInfo

_TTS_ARGS = QWEN3_TTS.stages[0].extras["tts_args"]
_SAMPLE_RATE = 24_000
_SAMPLES_PER_FRAME = 1920
_ALWAYS = frozenset({"language", "task_type", "non_streaming_mode", "max_new_tokens", "seed", "initial_codec_chunk_frames"})
_CLONING = frozenset({"ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding"})
_REFERENCES = ("ref_audio", "ref_text", "speaker_embedding")
"""Fields that ask for cloning by themselves."""
_MIN_FRAMES = 2
"""`min_tokens` of the deploy file, which may not be more than a request's limit."""


class Qwen3TTSSpeech(SpeechAdapter):
    """Check speech prompts against one Qwen3-TTS checkpoint."""

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        stages = self.options.get("stages")
        self.checkpoint = Checkpoint.of_stage(stages[0]) if stages else Checkpoint.read(model.path)
        self._codec = codec_facts(self.checkpoint)

    @cached_property
    def traits(self) -> SpeechTraits:
        """What this checkpoint accepts and makes."""
        checkpoint = self.checkpoint
        voices = tuple(checkpoint.voices) if checkpoint.task == "CustomVoice" else ()
        preferred = _TTS_ARGS["default_voice"]
        return SpeechTraits(
            sample_rate=self._codec["output_sample_rate"],
            channels=1,
            voices=voices,
            default_voice=next((name for name in voices if name.lower() == preferred), None),
            languages=("Auto", *(name.title() for name in checkpoint.spoken_languages)),
            task_types=(checkpoint.task,),
            accepts=self._accepts(),
            clones=checkpoint.task == "Base",
            reference_needs_text=checkpoint.task == "Base",
            max_instructions_chars=self.options.get("tts_max_instructions_length", _TTS_ARGS["max_instructions_chars"]),
            samples_per_frame=self._codec["decode_upsample_rate"],
        )

    def _accepts(self) -> frozenset[str]:
        fields = set(_ALWAYS)
        if self.checkpoint.task == "CustomVoice":
            fields.add("voice")
        if self.checkpoint.task == "Base":
            fields |= _CLONING
        if self.checkpoint.takes_instructions:
            fields.add("instructions")
        return frozenset(fields)

    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Return the prompt as inputs of the talker.

        Raises:
            RequestError: A field cannot be used; `param` names it and the hint lists what can.
        """
        check_text(prompt.text, self.traits)
        self._check_task(prompt)
        check_fields(prompt, self.traits, f"{self.checkpoint.task} model")
        inputs: dict[str, Any] = {
            "text": prompt.text,
            "language": self._language(prompt.language),
            "voice": self._voice(prompt.voice),
            "instructions": self._instructions(prompt.instructions),
            "non_streaming_mode": self._whole_text(prompt.non_streaming_mode),
            "initial_codec_chunk_frames": whole_number(
                prompt.initial_codec_chunk_frames, "initial_codec_chunk_frames", 0, self.traits.max_new_tokens
            ),
        }
        if self.traits.clones:
            inputs |= self._reference(prompt)
        sampling = dict(limits(prompt, self.traits))
        if sampling.get("max_tokens", _MIN_FRAMES) < _MIN_FRAMES:
            sampling["min_tokens"] = sampling["max_tokens"]
        return PreparedSpeech(inputs=inputs, sampling={0: sampling} if sampling else {})

    def _check_task(self, prompt: SpeechPrompt) -> None:
        own = self.checkpoint.task
        references = any(getattr(prompt, name) is not None for name in _REFERENCES)
        asked = prompt.task_type or ("Base" if references else own)
        if asked.lower() != own.lower():
            given = next((name for name in _REFERENCES if getattr(prompt, name) is not None), "ref_audio")
            raise RequestError(
                f"this request is of the task {asked!r}, but the model {self.checkpoint.folder.name!r} does {own!r}",
                param="task_type" if prompt.task_type else given,
                hint=f"send a request for {own}, or serve a {asked} checkpoint",
            )

    def _language(self, language: str | None) -> str:
        asked = (language or "auto").lower()
        if asked not in (name.lower() for name in self.traits.languages):
            known = ", ".join(self.traits.languages)
            raise RequestError(f"the language {language!r} is not known", param="language", hint=f"known are {known}")
        return asked

    def _voice(self, voice: str | None) -> str | None:
        if self.checkpoint.task != "CustomVoice":
            return None
        asked = voice if voice and voice.lower() != "default" else self.traits.default_voice
        found = next((name for name in self.traits.voices if asked and name.lower() == asked.lower()), None)
        if found is None:
            what = "this model needs a voice" if asked is None else f"the voice {asked!r} is not known"
            raise RequestError(what, param="voice", hint=f"known are {', '.join(self.traits.voices)}")
        return found

    def _instructions(self, instructions: str | None) -> str | None:
        if instructions is None and self.checkpoint.task == "VoiceDesign":
            raise RequestError(
                "a VoiceDesign model needs instructions",
                param="instructions",
                hint="describe the voice; an empty string leaves the choice to the model",
            )
        return check_instructions(instructions, self.traits)

    def _whole_text(self, asked: bool | None) -> bool:
        return self.checkpoint.task != "Base" if asked is None else asked

    def _reference(self, prompt: SpeechPrompt) -> dict[str, Any]:
        if prompt.speaker_embedding is not None:
            return self._embedding(prompt)
        if prompt.ref_audio is None:
            raise RequestError(
                "a Base model clones a voice and needs a sample of it",
                param="ref_audio",
                hint="send ref_audio (1 to 30 s) with ref_text, or speaker_embedding",
            )
        x_vector_only = bool(prompt.x_vector_only_mode)
        words = (prompt.ref_text or "").strip()
        if not x_vector_only and not words:
            raise RequestError(
                "the words of the reference are missing",
                param="ref_text",
                hint="send what ref_audio says as ref_text, or set x_vector_only_mode to true",
            )
        if x_vector_only and prompt.ref_text is not None:
            raise RequestError(
                "'ref_text' has no effect when x_vector_only_mode is true", param="ref_text", hint="leave one of the two out"
            )
        return {
            "ref_audio": check_reference(prompt.ref_audio, self.traits),
            "ref_sample_rate": int(prompt.ref_audio.sample_rate),
            "ref_text": None if x_vector_only else prompt.ref_text,
            "x_vector_only": x_vector_only,
        }

    def _embedding(self, prompt: SpeechPrompt) -> dict[str, Any]:
        for name in ("ref_audio", "ref_text"):
            if getattr(prompt, name) is not None:
                raise RequestError(f"'speaker_embedding' and {name!r} exclude each other", param=name, hint="send one of them")
        if prompt.x_vector_only_mode is False:
            raise RequestError(
                "in-context cloning needs ref_audio, not speaker_embedding",
                param="x_vector_only_mode",
                hint="leave it out",
            )
        width = self.checkpoint.speaker_width or self.checkpoint.hidden_size
        values = _numbers(prompt.speaker_embedding)
        if values.shape != (width,) or not np.isfinite(values).all():
            raise RequestError(
                f"the speaker embedding must be {width} finite numbers that float32 can hold, not {values.size} values",
                param="speaker_embedding",
                hint="use an embedding made with this model",
            )
        return {"speaker_embedding": values}


def _numbers(values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return values as the talker takes them, none where they are no numbers; what is too large becomes infinite."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.zeros(0, np.float32)


def codec_facts(checkpoint: Checkpoint) -> dict[str, int]:
    """Return rate and hop of the codec; the published values for what its config does not say (its stage then reports that)."""
    facts = {"output_sample_rate": _SAMPLE_RATE, "decode_upsample_rate": _SAMPLES_PER_FRAME}
    try:
        raw = read_json(checkpoint.folder / CODEC_FOLDER / "config.json")
    except ConfigError:
        return facts
    return {name: found if type(found := raw.get(name)) is int and found > 0 else value for name, value in facts.items()}
