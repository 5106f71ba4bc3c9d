"""The talker's prompt: pure functions from a request to its rows.

The talker reads rows, not tokens: a text id, and beside it the codes of a frame or none. A prompt asks for speech in a form
with fixed fields; those that are not given say `None`. A recording to imitate stands in the form, one to continue behind it,
where the talker's own frames follow:

    <|im_start|> user\\n <user_inst>\\n- Reference(s):\\n
    None   or   audio_start, one row for each frame, audio_end
    \\n- Instruction:\\n ... \\n- Text:\\n
    the text
    \\n</user_inst> <|im_end|> \\n <|im_start|> assistant\\n audio_start
    one row for each frame to be continued

Each piece is tokenized by itself and the ids are joined, so that no token spans two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from omni_models_moss.local.checkpoint import Checkpoint

Frames = np.ndarray[Any, Any]
Encode = Callable[[str], Sequence[int]]

NO_CODE = -1
"""In a row: nothing is added for this codebook (`modelkit.history.NO_CODE`, which needs torch)."""
FIELDS = {
    "instructions": "Instruction",
    "tokens": "Tokens",
    "quality": "Quality",
    "sound_event": "Sound Event",
    "ambient_sound": "Ambient Sound",
    "language": "Language",
}
"""Fields between the reference and the text, in the order of the form: names of the request to names of the form."""


@dataclass(frozen=True)
class Rows:
    """The rows of a prompt."""

    text_ids: np.ndarray[Any, np.dtype[np.int32]]
    """[rows]."""
    codes: np.ndarray[Any, np.dtype[np.int32]]
    """[rows, codebooks], NO_CODE in rows without a frame."""


def make_rows(
    checkpoint: Checkpoint,
    encode: Encode,
    text: str,
    fields: Mapping[str, Any],
    *,
    reference: Frames | None = None,
    continued: Frames | None = None,
) -> Rows:
    """Return the rows of a prompt.

    Args:
        checkpoint: Where the ids come from.
        encode: Turns a piece of text into ids, nothing added.
        text: What is to be said; for a continuation, after what is said already.
        fields: Values of `FIELDS`; a missing, empty or blank one is `None` in the form.
        reference: Frames [n, codebooks] of a voice to imitate.
        continued: Frames [n, codebooks] of the recording to continue.
    """
    ids = checkpoint
    rows = _Rows(checkpoint)
    rows.add([ids.im_start, *encode("user\n"), *encode("<user_inst>\n- Reference(s):\n")])
    if reference is None:
        rows.add(encode("None"))
    else:
        rows.add([ids.audio_start])
        rows.add_frames(ids.user_slot, reference)
        rows.add([ids.audio_end])
    rows.add(encode(_form(fields)))
    rows.add(encode(text))
    rows.add([*encode("\n</user_inst>"), ids.im_end, *encode("\n"), ids.im_start, *encode("assistant\n"), ids.audio_start])
    if continued is not None:
        rows.add_frames(ids.assistant_slot, continued)
    return rows.finish()


def _form(fields: Mapping[str, Any]) -> str:
    values = {label: str(fields.get(name) or "").strip() or "None" for name, label in FIELDS.items()}
    return "".join(f"\n- {label}:\n{value}" for label, value in values.items()) + "\n- Text:\n"


class _Rows:
    """Rows as they are written."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._text: list[int] = []
        self._codes: list[Frames] = []

    def add(self, ids: Iterable[int]) -> None:
        before = len(self._text)
        self._text += ids
        self._codes.append(np.full((len(self._text) - before, self._checkpoint.num_codes), NO_CODE, np.int32))

    def add_frames(self, slot: int, frames: Frames) -> None:
        self._text += [slot] * len(frames)
        self._codes.append(np.asarray(frames, np.int32))

    def finish(self) -> Rows:
        return Rows(np.asarray(self._text, np.int32), np.concatenate(self._codes))
