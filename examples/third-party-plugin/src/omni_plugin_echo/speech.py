"""What the server and the Python API need to know to speak with this pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.errors import RequestError
from omni_core.speech import PreparedSpeech, SpeechAdapter, SpeechPrompt, SpeechTraits
from omni_plugin_echo.checkpoint import read_facts

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

_REFUSED = ("language", "instructions", "task_type", "ref_audio", "ref_text", "speaker_embedding", "seed")


class EchoSpeech(SpeechAdapter):
    """Check prompts against an echo checkpoint."""

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, options)
        self.facts = read_facts(model.config)

    @property
    def traits(self) -> SpeechTraits:
        """What this checkpoint accepts and makes."""
        voices = tuple(self.facts.voices)
        return SpeechTraits(
            sample_rate=self.facts.sample_rate,
            channels=1,
            voices=voices,
            default_voice=voices[0],
            accepts=frozenset({"voice", "max_new_tokens"}),
            max_text_chars=1000,
            max_new_tokens=1000,
            samples_per_frame=self.facts.samples_per_character,
        )

    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Return the prompt as inputs of the speller.

        Raises:
            RequestError: A field cannot be used.
        """
        traits = self.traits
        if not prompt.text.strip():
            raise RequestError("the text is empty", param="input", hint="send some characters")
        if len(prompt.text) > traits.max_text_chars:
            raise RequestError(f"the text has more than {traits.max_text_chars} characters", param="input", hint="split it")
        for name in _REFUSED:
            if getattr(prompt, name) is not None:
                raise RequestError(f"this model has no use for {name!r}", param=name, hint="leave it out")
        asked = prompt.voice or traits.default_voice
        voice = next((name for name in traits.voices if name.lower() == str(asked).lower()), None)
        if voice is None:
            raise RequestError(f"there is no voice {asked!r}", param="voice", hint=f"choose one of {', '.join(traits.voices)}")
        limit = {} if prompt.max_new_tokens is None else {0: {"max_tokens": prompt.max_new_tokens}}
        return PreparedSpeech({"text": prompt.text, "voice": voice}, limit)
