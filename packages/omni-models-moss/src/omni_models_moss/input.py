"""What the input processors of the talkers have in common: text becomes ids, recordings become frames, both become rows.

Runs in the talker's stage process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.checkpoint import MossCheckpoint
from omni_models_moss.recordings import Recordings
from omni_models_moss.rows import Rows
from omni_models_moss.text import load_tokenizer

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

Facts = TypeVar("Facts", bound=MossCheckpoint)


class MossInput(Generic[Facts]):
    """What a talker's checkpoint says, its tokenizer, and the codec that makes frames of recordings, if it hears any.

    Args:
        stage: The talker's stage.
        checkpoint: What reads the checkpoint.

    Raises:
        ConfigError: A file of the checkpoint or of the codec is missing or damaged.
        DependencyError: The codec's repository cannot be fetched.
    """

    def __init__(self, stage: ResolvedStage, checkpoint: type[Facts]) -> None:
        self.facts = checkpoint.of_stage(stage)
        self.encode = load_tokenizer(stage.model).encode
        self.recordings = Recordings(stage, self.facts)

    @staticmethod
    def engine_input(
        payload: Payload,
        rows: Rows,
        *,
        stop: int,
        cache_key: str | None,
        inputs: Mapping[str, Any] | None = None,
        handoff: Mapping[str, Any] | None = None,
    ) -> EngineInput:
        """Return the engine's input: the rows, and their text ids as the prompt.

        Args:
            payload: What was asked for.
            rows: The prompt.
            stop: What ends the answer; the checkpoint says so, and not the pipeline.
            cache_key: See `EngineInput`.
            inputs: What the model gets beside the rows, or instead of a part of them.
            handoff: What the hand-over needs to know.
        """
        return EngineInput(
            prompt_token_ids=rows.text_ids.tolist(),
            model_inputs={"text_ids": rows.text_ids, "codes": rows.codes, **(inputs or {})},
            cache_key=cache_key,
            sampling={"stop_token_ids": [stop]},
            handoff={"initial_codec_chunk_frames": payload.get("initial_codec_chunk_frames"), **(handoff or {})},
        )
