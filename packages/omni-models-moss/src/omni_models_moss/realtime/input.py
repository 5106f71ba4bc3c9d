"""The input processor of the talker, in its stage process: text becomes ids, a recording becomes frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.realtime.prompt import make_rows
from omni_models_moss.recordings import Recordings, frames_key
from omni_models_moss.text import load_tokenizer

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class RealtimeInput:
    """Turn the inputs that `RealtimeSpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.read(stage.model)
        self._tokenizer = load_tokenizer(stage.model)
        self._recordings = Recordings(stage, self._checkpoint.num_codes)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: the rows, their text ids as the prompt, and the text ids of the rows that follow.

        Raises:
            RequestError: The recording cannot be used.
        """
        facts = self._checkpoint
        frames = self._recordings.frames(payload)
        rows, later = make_rows(facts, self._tokenizer.encode, payload["text"], reference=frames)
        spelt = (rows.text_ids == facts.reference_pad).sum() != (0 if frames is None else len(frames))
        return EngineInput(
            prompt_token_ids=rows.text_ids.tolist(),
            model_inputs={"text_ids": np.concatenate([rows.text_ids, later]), "codes": rows.codes},
            # A prompt may begin as another one does and have its last row, which is marked, within that one.
            cache_key=None if spelt else f"{len(rows.text_ids)}-{frames_key(frames)}",
            # The checkpoint says what ends the speech.
            sampling={"stop_token_ids": [facts.end_code]},
            handoff={"initial_codec_chunk_frames": payload.get("initial_codec_chunk_frames")},
        )
