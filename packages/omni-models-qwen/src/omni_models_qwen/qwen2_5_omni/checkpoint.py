"""What a Qwen2.5-Omni checkpoint says about itself in its config.json: ids and sizes. Read in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.modelkit.config_reader import ConfigReader
from omni_models_qwen.qwen2_5_omni.deploy_checks import CODEC_OPENING
from omni_models_qwen.talking.positions import MediaFacts

MODEL = "Qwen2.5-Omni"
_FIRST_WITHOUT_OPENING = 5
"""The major version of transformers from which on the talker's prompt lacks codec pad and bos."""


@dataclass(frozen=True)
class CodecIds:
    """Ids of the codec vocabulary that are no codes."""

    pad: int
    bos: int
    eos: int
    mask: int
    """Stands in the talker's prompt for positions that are no codes."""

    @property
    def ends(self) -> tuple[int, int]:
        """The ids that end the talker's answer."""
        return self.pad, self.eos


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder that speaks."""

    folder: Path
    codec: CodecIds
    media: MediaFacts
    text_end: int
    """Text id whose embedding the talker reads when the reply is over."""
    text_pad: int
    """Text id whose embedding it reads from then on."""
    thinker_width: int
    num_codes: int
    """Codes are below it."""
    codec_opening: bool
    """Whether the talker's prompt has codec pad and bos beside its last two rows, and positions in three dimensions.

    The published checkpoints were trained so, and the transformers that wrote them (4.50) runs them so. transformers 5 does
    neither, because its `generate` takes away the attention mask under which its talker does both. A checkpoint is run as the
    transformers that wrote it runs it; `codec_opening` in the stage's `additional_config` says otherwise.
    """

    @classmethod
    def read(cls, folder: str | Path, options: Mapping[str, Any] | None = None) -> Checkpoint:
        """Return the facts of the checkpoint in `folder`.

        Args:
            folder: The checkpoint.
            options: The talker stage's `additional_config`.

        Raises:
            ConfigError: config.json is missing, is no JSON, or lacks a field; the message names it.
        """
        read = ConfigReader.of_folder(folder, MODEL)
        talker, thinker = read.section("talker_config"), read.section("thinker_config")
        return cls(
            folder=Path(folder),
            codec=CodecIds(
                pad=talker.take("tts_codec_pad_token_id", int),
                bos=talker.take("tts_codec_start_token_id", int),
                eos=talker.take("tts_codec_end_token_id", int),
                mask=talker.take("tts_codec_mask_token_id", int),
            ),
            media=MediaFacts(
                image=thinker.take("image_token_index", int),
                video=thinker.take("video_token_index", int),
                audio=thinker.take("audio_token_index", int),
                merge_size=talker.optional("spatial_merge_size", int, 2),
                positions_per_second=talker.optional("position_id_per_seconds", int, 25),
                shared_marks=True,
            ),
            text_end=talker.take("tts_text_end_token_id", int),
            text_pad=talker.take("tts_text_pad_token_id", int),
            thinker_width=talker.take("embedding_size", int),
            num_codes=read.section("token2wav_config").section("dit_config").optional("num_embeds", int, 8193),
            codec_opening=_codec_opening(read, options or {}),
        )


def _codec_opening(read: ConfigReader, options: Mapping[str, Any]) -> bool:
    given = options.get(CODEC_OPENING)
    if given is not None:
        return bool(given)
    major = read.optional("transformers_version", str, "4").partition(".")[0]
    return not (major.isdigit() and int(major) >= _FIRST_WITHOUT_OPENING)
