"""What a Qwen3-TTS checkpoint says about itself in its JSON files: ids, voices, languages. Read in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_core.modelkit.config_reader import ConfigReader

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

MODEL = "Qwen3-TTS"
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
        return cls._from_reader(ConfigReader.of_folder(folder, MODEL), folder)

    @classmethod
    def of_stage(cls, stage: ResolvedStage) -> Checkpoint:
        """Return the facts of the talker's checkpoint as its engine reads them: with the stage's `hf_overrides`.

        Raises:
            ConfigError: As `read`.
        """
        raw = ConfigReader.of_folder(stage.model, MODEL).raw
        return cls.from_config({**raw, **stage.config_overrides}, stage.model)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], folder: str | Path) -> Checkpoint:
        """Return the facts in an already parsed config.json."""
        return cls._from_reader(ConfigReader(raw, str(Path(folder) / "config.json"), MODEL), folder)

    @classmethod
    def _from_reader(cls, read: ConfigReader, folder: str | Path) -> Checkpoint:
        talker = read.section("talker_config")
        predictor = talker.section("code_predictor_config")
        variant = read.take("tts_model_type", str)
        if variant not in TASKS:
            known = ", ".join(TASKS)
            raise read.fault(f"tts_model_type {variant!r} is not known", f"known are {known}")
        hidden = talker.take("hidden_size", int)
        languages = {name.lower(): i for name, i in talker.ids("codec_language_id").items()}
        given = talker.optional("spk_is_dialect", dict, {})
        dialects = {name.lower(): str(dialect).lower() for name, dialect in given.items() if dialect}
        if unknown := set(dialects.values()) - set(languages):
            raise talker.fault(f"spk_is_dialect names {sorted(unknown)}, which codec_language_id lacks")
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
            languages=languages,
            voices=talker.ids("spk_id", {}),
            dialects=dialects,
            speaker_width=_speaker_width(read, hidden),
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


def _speaker_width(read: ConfigReader, hidden: int) -> int | None:
    """Return the width of speaker embeddings, which are added to the talker's rows; None without a speaker encoder."""
    if read.raw.get("speaker_encoder_config") is None:
        return None
    width: int = read.section("speaker_encoder_config").optional("enc_dim", int, hidden)
    if width != hidden:
        raise read.fault(f"speaker_encoder_config.enc_dim is {width}, but the talker's rows have {hidden} values")
    return width
