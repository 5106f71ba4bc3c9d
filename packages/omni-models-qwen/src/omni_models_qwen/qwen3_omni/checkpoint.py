"""What a Qwen3-Omni checkpoint says about itself in its config.json: ids, voices, sizes. Read in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_core.modelkit.config_reader import ConfigReader
from omni_models_qwen.qwen3_omni.chat import DEFAULT_VOICE, MODEL
from omni_models_qwen.talking.positions import MediaFacts


@dataclass(frozen=True)
class TextIds:
    """Ids of the text vocabulary that the talker looks for or reads."""

    im_start: int
    user: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    image: int
    video: int
    audio: int

    @property
    def media(self) -> tuple[int, int, int]:
        """The ids that stand for images, videos and audio."""
        return self.image, self.video, self.audio


@dataclass(frozen=True)
class CodecIds:
    """Ids of the codec vocabulary that are no codes."""

    pad: int
    bos: int
    eos: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder that speaks."""

    folder: Path
    text: TextIds
    codec: CodecIds
    voices: Mapping[str, int]
    """Lower-case names to codec ids."""
    default_voice: str
    accept_hidden_layer: int
    """The thinker's hidden states that stand for images, videos and audio: 0 is the embeddings, k the output of layer k-1."""
    num_codes: int
    thinker_width: int
    merge_size: int
    """Patches of an image along one side that become one position."""
    positions_per_second: float
    """Temporal positions of a second of video."""

    @classmethod
    def read(cls, folder: str | Path) -> Checkpoint:
        """Return the facts of the checkpoint in `folder`.

        Raises:
            ConfigError: config.json is missing, is no JSON, or lacks a field; the message names it.
        """
        return cls.of_reader(ConfigReader.of_folder(folder, MODEL), folder)

    @classmethod
    def of_reader(cls, read: ConfigReader, folder: str | Path) -> Checkpoint:
        """Return the facts in an already parsed config.json."""
        talker = read.section("talker_config")
        voices = {name.lower(): number for name, number in talker.ids("speaker_id").items()}
        if not voices:
            raise talker.fault("speaker_id is empty", "give a checkpoint with voices")
        return cls(
            folder=Path(folder),
            text=_text_ids(read, talker),
            codec=CodecIds(
                pad=talker.take("codec_pad_id", int),
                bos=talker.take("codec_bos_id", int),
                eos=talker.take("codec_eos_token_id", int),
                nothink=talker.take("codec_nothink_id", int),
                think_bos=talker.take("codec_think_bos_id", int),
                think_eos=talker.take("codec_think_eos_id", int),
            ),
            voices=voices,
            default_voice=DEFAULT_VOICE if DEFAULT_VOICE in voices else next(iter(voices)),
            accept_hidden_layer=talker.take("accept_hidden_layer", int),
            num_codes=talker.take("num_code_groups", int),
            thinker_width=talker.take("thinker_hidden_size", int),
            merge_size=talker.optional("spatial_merge_size", int, 2),
            positions_per_second=talker.optional("position_id_per_seconds", int, 13),
        )

    @property
    def media(self) -> MediaFacts:
        """What says where images, videos and audio lie in a prompt."""
        text = self.text
        return MediaFacts(text.image, text.video, text.audio, self.merge_size, self.positions_per_second)

    def voice_id(self, name: str | None) -> int | None:
        """Return the codec id of a voice, matched without case; None for a name that is no voice."""
        return self.voices.get((name or self.default_voice).lower())


def _text_ids(read: ConfigReader, talker: ConfigReader) -> TextIds:
    return TextIds(
        im_start=read.take("im_start_token_id", int),
        user=read.take("user_token_id", int),
        assistant=read.take("assistant_token_id", int),
        tts_pad=read.take("tts_pad_token_id", int),
        tts_bos=read.take("tts_bos_token_id", int),
        tts_eos=read.take("tts_eos_token_id", int),
        image=talker.take("image_token_id", int),
        video=talker.take("video_token_id", int),
        audio=talker.take("audio_token_id", int),
    )
