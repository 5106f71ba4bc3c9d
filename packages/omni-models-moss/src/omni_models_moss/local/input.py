"""The input processor of the talker, in its stage process: text becomes ids, a recording becomes frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.form import FIELDS
from omni_models_moss.input import MossInput
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.prompt import make_rows
from omni_models_moss.recordings import cache_key

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class LocalInput(MossInput[Checkpoint]):
    """Turn the inputs that `LocalSpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        super().__init__(stage, Checkpoint)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input.

        Raises:
            RequestError: The recording cannot be used.
        """
        facts = self.facts
        frames = self.recordings.frames(payload)
        continued = frames if payload.get("continues") else None
        rows = make_rows(
            facts,
            self.encode,
            payload["text"],
            {name: payload.get(name) for name in FIELDS},
            reference=None if continued is not None else frames,
            continued=continued,
        )
        return self.engine_input(
            payload,
            rows,
            stop=facts.audio_end,
            cache_key=cache_key(rows, (facts.user_slot, facts.assistant_slot), frames),
            handoff={"ref_codes": continued},
        )
