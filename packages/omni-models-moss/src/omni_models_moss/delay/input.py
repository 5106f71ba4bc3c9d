"""The input processor of the talker, in its stage process: text becomes ids, recordings become frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.delay.checkpoint import Checkpoint
from omni_models_moss.delay.prompt import make_rows
from omni_models_moss.form import FIELDS
from omni_models_moss.input import MossInput
from omni_models_moss.recordings import cache_key

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class DelayInput(MossInput[Checkpoint]):
    """Turn the inputs that `DelaySpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        super().__init__(stage, Checkpoint)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input.

        Raises:
            RequestError: A recording cannot be used.
        """
        facts = self.facts
        first, second = (self.recordings.frames(payload, name) for name in ("ref_audio", "ref_audio_2"))
        continued = first if payload.get("continues") else None
        rows = make_rows(
            facts,
            self.encode,
            payload["text"],
            {name: payload.get(name) for name in FIELDS},
            references=[frames for frames in (first, second) if frames is not None and frames is not continued],
            continued=continued,
        )
        begun = 0 if continued is None else len(continued)
        return self.engine_input(
            payload,
            rows,
            stop=facts.im_end,
            cache_key=cache_key(rows, (facts.user_slot, facts.gen_slot, facts.delay_slot), first, second),
            inputs={"begun": begun},
            handoff={"begun_rows": rows.codes[len(rows.codes) - begun :] if begun else None},
        )
