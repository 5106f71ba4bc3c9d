"""The input processor of the talker, in its stage process: text becomes ids, a recording becomes frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.input import MossInput
from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.realtime.prompt import make_rows
from omni_models_moss.recordings import cache_key

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class RealtimeInput(MossInput[Checkpoint]):
    """Turn the inputs that `RealtimeSpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        super().__init__(stage, Checkpoint)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input, and with it the text ids of the rows that follow the prompt's.

        Raises:
            RequestError: The recording cannot be used.
        """
        facts = self.facts
        frames = self.recordings.frames(payload)
        rows, later = make_rows(facts, self.encode, payload["text"], reference=frames)
        key = cache_key(rows, (facts.reference_pad,), frames)
        return self.engine_input(
            payload,
            rows,
            stop=facts.end_code,
            # A prompt may begin as another one does and have its last row, which is marked, within that one.
            cache_key=None if key is None else f"{len(rows.text_ids)}-{key}",
            inputs={"text_ids": np.concatenate([rows.text_ids, later])},
        )
