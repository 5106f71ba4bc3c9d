"""The talker's prompt: pure functions from token ids to the plan of its rows.

The talker reads rows, not tokens. A row is the sum of a text embedding (projected) and of codec embeddings; a plan says for
each row which ones. The rows of a prompt, in order:

    instructions                text only
    <|im_start|>assistant\\n     text only
    language, voice             tts_pad ... tts_bos, beside: think ids, language, voice, codec pad
    then one of
      whole text                text and tts_eos beside codec pad, then tts_pad beside codec bos
      text as it is spoken      the first text token beside codec bos; each later row speaks the next token
      in-context cloning        reference text and text beside the codec bos and the reference's frames

After the prompt every row holds the frame made last and the next text token, or tts_pad once the text is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.errors import RequestError

if TYPE_CHECKING:
    from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint

NO_CODE = -1
"""In a plan: nothing is added for this codebook (`modelkit.history.NO_CODE`, which needs torch)."""
_ROLE = 3
"""Tokens of `<|im_start|>assistant\\n`."""
_TEXT_TAIL = 5
"""Tokens of `<|im_end|>\\n<|im_start|>assistant\\n`."""
_REFERENCE_TAIL = 2
"""Tokens of `<|im_end|>\\n`."""


def assistant_text(text: str) -> str:
    """Return the text to be spoken in the chat form that the model was trained on."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"


def reference_text(text: str) -> str:
    """Return the words of a reference in their chat form."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n"


def instruction_text(text: str) -> str:
    """Return instructions in their chat form."""
    return f"<|im_start|>user\n{text}<|im_end|>\n"


@dataclass(frozen=True)
class PromptTokens:
    """Token ids of the parts of a prompt, each in its chat form."""

    text: Sequence[int]
    instructions: Sequence[int] = ()
    reference: Sequence[int] = ()


@dataclass(frozen=True)
class RowPlan:
    """The rows of a prompt, and the text of the rows after it."""

    text_ids: np.ndarray[Any, np.dtype[np.int32]]
    """Text id of each row [rows + later]; rows after these hold tts_pad."""
    codes: np.ndarray[Any, np.dtype[np.int32]]
    """Codec ids of each row of the prompt [rows, codebooks], NO_CODE where nothing is added."""
    speaker_row: int
    """The row that a speaker embedding is added to, or -1."""

    @property
    def rows(self) -> int:
        """The length of the prompt."""
        return len(self.codes)


def plan_rows(
    checkpoint: Checkpoint,
    tokens: PromptTokens,
    *,
    language_id: int | None,
    voice_id: int | None = None,
    speaker_embedding: bool = False,
    reference_codes: np.ndarray[Any, Any] | None = None,
    whole_text: bool = True,
) -> RowPlan:
    """Return the plan of a prompt.

    Args:
        checkpoint: Where the ids come from.
        tokens: The parts of the prompt.
        language_id: Codec id of the language, None for automatic.
        voice_id: Codec id of a built-in voice.
        speaker_embedding: Whether a speaker embedding takes the place of the voice.
        reference_codes: Frames of the reference [frames, codebooks] for in-context cloning.
        whole_text: Whether the whole text is in the prompt, or flows in as it is spoken.

    Raises:
        RequestError: There is no text to speak.
    """
    text = list(tokens.text[_ROLE:-_TEXT_TAIL])
    if not text:
        raise RequestError("there is no text to speak", param="input", hint="send at least one word")
    rows = _Rows(checkpoint.num_codes)
    for token in (*tokens.instructions, *tokens.text[:_ROLE]):
        rows.add(token)
    speaker_row = _add_language_and_voice(rows, checkpoint, language_id, voice_id, speaker_embedding)
    later: list[int] = []
    pad, bos = checkpoint.codec.pad, checkpoint.codec.bos
    ids = checkpoint.text
    if reference_codes is not None:
        words = [*tokens.reference[_ROLE:-_REFERENCE_TAIL], *text, ids.tts_eos]
        later = _add_reference(rows, words, checkpoint, reference_codes, whole_text)
    elif whole_text:
        for token in (*text, ids.tts_eos):
            rows.add(token, [pad])
        rows.add(ids.tts_pad, [bos])
    else:
        rows.add(text[0], [bos])
        later = [*text[1:], ids.tts_eos]
    return RowPlan(
        text_ids=np.asarray([*rows.text, *later], dtype=np.int32),
        codes=np.asarray(rows.codes, dtype=np.int32),
        speaker_row=speaker_row,
    )


class _Rows:
    """Rows as they are written."""

    def __init__(self, num_codes: int) -> None:
        self.text: list[int] = []
        self.codes: list[list[int]] = []
        self._num_codes = num_codes

    def add(self, text: int, codes: Sequence[int] = ()) -> None:
        self.text.append(text)
        self.codes.append([*codes, *[NO_CODE] * (self._num_codes - len(codes))])


def _add_language_and_voice(
    rows: _Rows, checkpoint: Checkpoint, language_id: int | None, voice_id: int | None, speaker_embedding: bool
) -> int:
    """Add the rows that name language and voice; return the row of a speaker embedding, or -1."""
    codec = checkpoint.codec
    if language_id is None:
        beside = [codec.nothink, codec.think_bos, codec.think_eos]
    else:
        beside = [codec.think, codec.think_bos, language_id, codec.think_eos]
    speaker_row = -1
    if speaker_embedding:
        speaker_row = len(rows.text) + len(beside)
        beside.append(NO_CODE)
    elif voice_id is not None:
        beside.append(voice_id)
    for code in beside:
        rows.add(checkpoint.text.tts_pad, [code])
    rows.add(checkpoint.text.tts_bos, [codec.pad])
    return speaker_row


def _add_reference(
    rows: _Rows, words: list[int], checkpoint: Checkpoint, reference: np.ndarray[Any, Any], whole_text: bool
) -> list[int]:
    """Add the rows of in-context cloning; return the text that flows in later."""
    pad = checkpoint.text.tts_pad
    frames = [[checkpoint.codec.bos], *reference.tolist()]
    if whole_text:
        for token in words:
            rows.add(token, [checkpoint.codec.pad])
        for frame in frames:
            rows.add(pad, frame)
        return []
    beside = [*words[: len(frames)], *[pad] * (len(frames) - len(words))]
    for token, frame in zip(beside, frames, strict=True):
        rows.add(token, frame)
    return words[len(frames) :]
