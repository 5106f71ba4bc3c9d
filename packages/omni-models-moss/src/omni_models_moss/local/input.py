"""The input processor of the talker, in its stage process: text becomes ids, a recording becomes frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.form import FIELDS
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.prompt import make_rows
from omni_models_moss.recordings import Recordings, frames_key
from omni_models_moss.rows import Frames, Rows
from omni_models_moss.text import load_tokenizer

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class LocalInput:
    """Turn the inputs that `LocalSpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.read(stage.model)
        self._tokenizer = load_tokenizer(stage.model)
        self._recordings = Recordings(stage, self._checkpoint.num_codes)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: the rows, and their text ids as the prompt.

        Raises:
            RequestError: The recording cannot be used.
        """
        frames = self._recordings.frames(payload)
        continues = frames is not None and bool(payload.get("continues"))
        rows = make_rows(
            self._checkpoint,
            self._tokenizer.encode,
            payload["text"],
            {name: payload.get(name) for name in FIELDS},
            reference=None if continues else frames,
            continued=frames if continues else None,
        )
        return EngineInput(
            prompt_token_ids=rows.text_ids.tolist(),
            model_inputs={"text_ids": rows.text_ids, "codes": rows.codes},
            cache_key=self._cache_key(rows, frames, continues=continues),
            # The checkpoint says what ends the speech.
            sampling={"stop_token_ids": [self._checkpoint.audio_end]},
            handoff={
                "ref_codes": frames if continues else None,
                "initial_codec_chunk_frames": payload.get("initial_codec_chunk_frames"),
            },
        )

    def _cache_key(self, rows: Rows, frames: Frames | None, *, continues: bool) -> str | None:
        """Return what, beside the text ids, makes two prompts equal: the frames.

        None where the text itself spells the slot of spoken frames: such a prompt could pass for one with frames behind it.
        """
        if not continues and (rows.text_ids == self._checkpoint.assistant_slot).any():
            return None
        return frames_key(frames)
