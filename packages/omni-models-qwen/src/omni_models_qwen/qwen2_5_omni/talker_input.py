"""The input processor of the talker: from the thinker's rows to the talker's prompt. Talker's stage process.

The talker reads the whole prompt, the mark of its voice and the first token of the reply, and then one further token of the
reply beside each code that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from omni_core.errors import RequestError, ServiceError
from omni_core.modelkit.history import as_tensor
from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_qwen.qwen2_5_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen2_5_omni.voices import Voices
from omni_models_qwen.talking.positions import prompt_positions

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

OPENING = 2
"""Positions behind the prompt: the mark of the voice and the reply's first token. Their ids are codec pad and codec bos."""


class TalkerInput:
    """Turn the thinker's rows into the talker's prompt and the rows behind it."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.read(stage.model, stage.engine_args.get("additional_config"))
        self._voices = Voices.read(stage.model)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: ids for the repetition penalty, as the reference has them, and all rows.

        A reply whose only token ended it leaves nothing to say: then the only id that can be sampled is the end of speech.

        Raises:
            RequestError: There is no such voice.
        """
        facts = self._checkpoint
        name = payload.get("voice")
        voice = self._voices.find(name)
        if voice is None:
            raise RequestError(
                f"there is no voice {name!r}", param="voice", hint=f"choose one of {', '.join(self._voices.names)}"
            )
        ids = np.asarray(payload["prompt_token_ids"], dtype=np.int64)
        rows = as_tensor(payload["rows"])
        if len(rows) <= len(ids):
            raise ServiceError(f"the thinker sent {len(rows)} rows for a prompt of {len(ids)} positions")
        handoff = {"voice": voice.name, "ends": list(facts.codec.ends)}
        inputs: dict[str, Any] = {"mark": voice.mark}
        if len(rows) == len(ids) + 1:
            return EngineInput(
                prompt_token_ids=[facts.codec.pad],
                model_inputs=inputs,
                rows=rows[-1:],
                sampling={"allowed_token_ids": [facts.codec.eos], "stop_token_ids": [facts.codec.eos], "min_tokens": 0},
                handoff=handoff,
            )
        if facts.codec_opening:
            everything = np.ones(len(ids), dtype=bool)
            found = prompt_positions(facts.media, ids, everything, payload.get("mm") or {}, OPENING)
            if found is not None:
                inputs["positions"], inputs["delta"] = found
        return EngineInput(
            prompt_token_ids=[facts.codec.mask] * len(ids) + [facts.codec.pad, facts.codec.bos],
            model_inputs=inputs,
            rows=self._without_embeddings(rows, ids, payload),
            sampling={"stop_token_ids": list(facts.codec.ends)},
            handoff=handoff,
        )

    def _without_embeddings(self, rows: Tensor, ids: np.ndarray[Any, Any], payload: Payload) -> Tensor:
        """Return the rows, those of media without the embeddings that were added to them."""
        positions = payload.get("media_positions")
        if positions is None:
            return rows
        is_media = self._checkpoint.media.is_media(ids)[positions]
        if is_media.any():
            rows = rows.clone()
            rows[torch.from_numpy(np.asarray(positions)[is_media])] = as_tensor(payload["media_rows"])[
                torch.from_numpy(is_media)
            ]
        return rows
