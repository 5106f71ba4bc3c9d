"""The input processor of the talker: from what the thinker read and wrote to the talker's rows. Talker's stage process.

The talker reads the user's turns, then nine rows that open its answer, then one row for each further token of the reply. Rows
are the thinker's: its embeddings for text, the accepted layer's hidden states for images, videos and audio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from omni_core.errors import RequestError, ServiceError
from omni_core.modelkit.history import NO_CODE, as_tensor
from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_qwen.qwen3_omni.checkpoint import Checkpoint
from omni_models_qwen.talking.positions import prompt_positions
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

PROJECT_TEXT, PROJECT_HIDDEN, READ_PAD, READ_BOS = range(4)
"""What a row is made of: the thinker's row, projected as text or as a hidden state, or one of the two marks."""
ROLE = 3
"""Ids that begin the assistant's turn: its mark, its name and a line break."""
MARKS = (READ_PAD,) * 4 + (READ_BOS,)
"""Rows between these and the first token of the reply."""
OPENING = ROLE + len(MARKS) + 1


class TalkerInput:
    """Turn the thinker's rows into the talker's prompt and the first rows behind it."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.read(stage.model)

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: placeholders for ids, and the rows that are there.

        A reply without a token to read aloud gives an input whose only possible frame is the end of speech.

        Raises:
            RequestError: There is no such voice, or the prompt has no turn of the assistant to speak.
        """
        facts = self._checkpoint
        voice = payload.get("voice")
        speaker = facts.voice_id(voice)
        if speaker is None:
            raise RequestError(
                f"there is no voice {voice!r}", param="voice", hint=f"choose one of {', '.join(sorted(facts.voices))}"
            )
        ids = np.asarray(payload["prompt_token_ids"], dtype=np.int64)
        embeds, hidden = as_tensor(payload[EMBEDS]), as_tensor(payload[HIDDEN])
        turn = self._assistant_turn(ids)
        spoken = embeds[turn + ROLE :]
        if not len(spoken):
            return self._silence(embeds)
        kept = self._user_turns(ids)
        is_media = np.isin(ids, facts.text.media)
        marks = torch.zeros((len(MARKS), embeds.shape[1]), dtype=embeds.dtype)
        rows = [self._prompt_rows(embeds, hidden, kept, is_media), embeds[turn : turn + ROLE], marks, spoken]
        length = int(kept.sum()) + OPENING
        inputs: dict[str, Any] = {
            "kinds": self._kinds(is_media[kept]),
            "codes": self._codes(length, speaker),
        }
        found = prompt_positions(facts.media, ids, kept, payload.get("mm") or {}, OPENING)
        if found is not None:
            inputs["positions"], inputs["delta"] = found
        return EngineInput(
            # vLLM's repetition penalty counts prompt ids. Codec pad is suppressed anyway, so penalising it does no harm.
            prompt_token_ids=[facts.codec.pad] * length,
            model_inputs=inputs,
            rows=torch.cat(rows),
            handoff={"num_codes": facts.num_codes},
        )

    def _assistant_turn(self, ids: np.ndarray[Any, Any]) -> int:
        """Return where the turn begins that the thinker was asked to write."""
        text = self._checkpoint.text
        found = np.flatnonzero((ids[:-1] == text.im_start) & (ids[1:] == text.assistant))
        if not len(found):
            raise RequestError(
                "the prompt does not ask the assistant for an answer, so there is nothing to speak",
                param="messages",
                hint="send a conversation, or ask for text only",
            )
        return int(found[-1])

    def _user_turns(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return which positions belong to turns of the user, bool [P]."""
        text = self._checkpoint.text
        starts = np.where(ids == text.im_start, np.arange(len(ids)), -1)
        role = np.maximum.accumulate(starts).clip(0) + 1
        users: np.ndarray[Any, Any] = ids[role.clip(max=len(ids) - 1)] == text.user
        return users

    @staticmethod
    def _prompt_rows(embeds: Tensor, hidden: Tensor, kept: np.ndarray[Any, Any], is_media: np.ndarray[Any, Any]) -> Tensor:
        places = torch.from_numpy(np.flatnonzero(kept))
        if len(embeds) < len(kept) or len(hidden) < len(kept):
            raise ServiceError(f"the thinker sent {len(embeds)} rows for a prompt of {len(kept)} positions")
        media = torch.from_numpy(is_media)[places][:, None]
        return torch.where(media, hidden[places], embeds[places])

    @staticmethod
    def _kinds(is_media: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        opening = np.array((PROJECT_TEXT,) * ROLE + MARKS + (PROJECT_TEXT,), dtype=np.uint8)
        return np.concatenate([np.where(is_media, PROJECT_HIDDEN, PROJECT_TEXT).astype(np.uint8), opening])

    def _codes(self, length: int, speaker: int) -> np.ndarray[Any, Any]:
        """Return the codec side of the rows, int32 [length, num_codes]: the opening's last six have a control id."""
        codec = self._checkpoint.codec
        codes = np.full((length, self._checkpoint.num_codes), NO_CODE, dtype=np.int32)
        codes[-6:, 0] = (codec.nothink, codec.think_bos, codec.think_eos, speaker, codec.pad, codec.bos)
        return codes

    def _silence(self, embeds: Tensor) -> EngineInput:
        facts = self._checkpoint
        return EngineInput(
            prompt_token_ids=[facts.codec.pad],
            model_inputs={"kinds": np.array([READ_PAD], np.uint8), "codes": self._codes(6, facts.codec.pad)[-1:]},
            rows=embeds[:1],
            sampling={"allowed_token_ids": [facts.codec.eos], "min_tokens": 0},
            handoff={"num_codes": facts.num_codes},
        )
