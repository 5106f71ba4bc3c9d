"""The input processor of the talker, in its stage process: text becomes ids, recordings become frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_moss.delay.checkpoint import Checkpoint
from omni_models_moss.delay.prompt import make_rows
from omni_models_moss.form import FIELDS
from omni_models_moss.recordings import Recordings, frames_key
from omni_models_moss.text import load_tokenizer

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage


class DelayInput:
    """Turn the inputs that `DelaySpeech` prepared into the talker's rows."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.read(stage.model)
        self._tokenizer = load_tokenizer(stage.model)
        self._recordings = Recordings(stage, self._checkpoint.num_codes)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: the rows, and their text ids as the prompt.

        Raises:
            RequestError: A recording cannot be used.
        """
        facts = self._checkpoint
        first, second = (self._recordings.frames(payload, name) for name in ("ref_audio", "ref_audio_2"))
        continued = first if payload.get("continues") else None
        references = [frames for frames in (first, second) if frames is not None and frames is not continued]
        rows = make_rows(
            facts,
            self._tokenizer.encode,
            payload["text"],
            {name: payload.get(name) for name in FIELDS},
            references=references,
            continued=continued,
        )
        slots = (facts.user_slot, facts.gen_slot)
        spelt = sum(len(frames) + facts.num_codes - 1 for frames in references) + (0 if continued is None else len(continued))
        begun = 0 if continued is None else len(continued)
        return EngineInput(
            prompt_token_ids=rows.text_ids.tolist(),
            model_inputs={"text_ids": rows.text_ids, "codes": rows.codes, "begun": begun},
            # A text that itself spells slots of frames could pass for another prompt with frames there.
            cache_key=frames_key(first, second) if sum((rows.text_ids == slot).sum() for slot in slots) == spelt else None,
            # The checkpoint says what ends the answer.
            sampling={"stop_token_ids": [facts.im_end]},
            handoff={
                "begun_rows": rows.codes[len(rows.codes) - begun :] if begun else None,
                "initial_codec_chunk_frames": payload.get("initial_codec_chunk_frames"),
            },
        )
