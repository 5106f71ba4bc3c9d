"""What a Qwen3-TTS checkpoint says about itself in its JSON files: ids, voices, languages. Read in any process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError

TASKS = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}
"""`tts_model_type` of the checkpoint to the task type of the API."""


@dataclass(frozen=True)
class TextIds:
    """Ids of the text vocabulary that frame what is spoken."""

    tts_pad: int
    tts_bos: int
    tts_eos: int


@dataclass(frozen=True)
class CodecIds:
    """Ids of the codec vocabulary that are no codes."""

    pad: int
    bos: int
    eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder."""

    folder: Path
    task: str
    """`CustomVoice`, `VoiceDesign` or `Base`."""
    size: str
    """`0b6` or `1b7`."""
    text: TextIds
    codec: CodecIds
    vocab_size: int
    codebook_size: int
    """Codes are ids below this one; what lies between it and `vocab_size` is control."""
    num_codes: int
    hidden_size: int
    languages: Mapping[str, int] = field(default_factory=dict)
    """Lower-case names, dialects included, to codec ids."""
    voices: Mapping[str, int] = field(default_factory=dict)
    """Names as the checkpoint spells them to codec ids."""
    dialects: Mapping[str, str] = field(default_factory=dict)
    """Lower-case voices to the dialect they speak instead of Chinese."""
    speaker_width: int | None = None
    """Width of a speaker embedding; None where the checkpoint has no speaker encoder."""

    @classmethod
    def read(cls, folder: str | Path) -> Checkpoint:
        """Return the facts of the checkpoint in `folder`.

        Raises:
            ConfigError: config.json is missing, is no JSON, or lacks a field; the message names it.
        """
        path = Path(folder) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read it: {error}", where=str(path), hint="give a Qwen3-TTS checkpoint") from error
        return cls.from_config(raw, folder)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], folder: str | Path) -> Checkpoint:
        """Return the facts in an already parsed config.json."""
        where = str(Path(folder) / "config.json")
        read = _Reader(raw, where)
        talker = _Reader(read.take("talker_config", dict), where, "talker_config.")
        predictor = _Reader(talker.take("code_predictor_config", dict), where, "talker_config.code_predictor_config.")
        variant = read.take("tts_model_type", str)
        if variant not in TASKS:
            raise ConfigError(f"tts_model_type {variant!r} is not known", where=where, hint=f"known are {', '.join(TASKS)}")
        speaker = raw.get("speaker_encoder_config")
        hidden = talker.take("hidden_size", int)
        dialects = talker.optional("spk_is_dialect", dict, {})
        return cls(
            folder=Path(folder),
            task=TASKS[variant],
            size=read.optional("tts_model_size", str, ""),
            text=TextIds(*(read.take(f"tts_{name}_token_id", int) for name in ("pad", "bos", "eos"))),
            codec=CodecIds(
                *(
                    talker.take(f"codec_{name}", int)
                    for name in ("pad_id", "bos_id", "eos_token_id", "think_id", "nothink_id", "think_bos_id", "think_eos_id")
                )
            ),
            vocab_size=talker.take("vocab_size", int),
            codebook_size=predictor.take("vocab_size", int),
            num_codes=talker.take("num_code_groups", int),
            hidden_size=hidden,
            languages={name.lower(): i for name, i in talker.take("codec_language_id", dict).items()},
            voices=dict(talker.optional("spk_id", dict, {})),
            dialects={name.lower(): dialect for name, dialect in dialects.items() if dialect},
            speaker_width=int(speaker.get("enc_dim", hidden)) if isinstance(speaker, Mapping) else None,
        )

    @property
    def takes_instructions(self) -> bool:
        """Whether instructions have an effect: the small CustomVoice models were not trained on them."""
        return self.task == "VoiceDesign" or (self.task == "CustomVoice" and self.size != "0b6")

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        """The languages a user may name, lower case. Dialects follow from the voice and are not among them."""
        return tuple(name for name in self.languages if "dialect" not in name)

    def language_id(self, language: str, voice: str | None) -> int | None:
        """Return the codec id of a language, None for automatic. A voice with a dialect replaces Chinese and automatic."""
        name = language.lower()
        dialect = self.dialects.get((voice or "").lower())
        if dialect is not None and name in ("chinese", "auto"):
            name = dialect
        return None if name == "auto" else self.languages[name]

    def voice_id(self, voice: str) -> int:
        """Return the codec id of a voice, matched without case."""
        return next(i for name, i in self.voices.items() if name.lower() == voice.lower())


@dataclass(frozen=True)
class _Reader:
    """One object of config.json; a missing field is an error that names it."""

    raw: Mapping[str, Any]
    where: str
    prefix: str = ""

    def take(self, name: str, kind: type) -> Any:
        found = self.raw.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            what = "is missing" if found is None else f"must be of type {kind.__name__}, not {found!r}"
            raise ConfigError(f"{self.prefix}{name} {what}", where=self.where, hint="give an unchanged Qwen3-TTS checkpoint")
        return found

    def optional(self, name: str, kind: type, default: Any) -> Any:
        return default if self.raw.get(name) is None else self.take(name, kind)
