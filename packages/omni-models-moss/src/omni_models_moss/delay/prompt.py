"""The talker's prompt: pure functions from a request to its rows.

    <|im_start|> user\n<user_inst>\n- Reference(s):\n
    None   or for each speaker   [S1]:\n audio_start, the delayed rows of the recording, audio_end
    \n- Instruction:\n ... \n- Text:\n the text \n</user_inst> <|im_end|> \n <|im_start|> assistant\n

What lies between two special tokens is tokenized as one text. A recording to be continued follows as the answer's beginning:
audio_start and as many delayed rows as it has frames. The rows that would complete its last frames are left to the talker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_models_moss.delay.pattern import delayed
from omni_models_moss.form import HEAD, NOTHING, TAIL, fields_text
from omni_models_moss.rows import Encode, Frames, RowBuilder, Rows

if TYPE_CHECKING:
    from omni_models_moss.delay.checkpoint import Checkpoint


def make_rows(
    checkpoint: Checkpoint,
    encode: Encode,
    text: str,
    fields: Mapping[str, Any],
    *,
    references: Sequence[Frames] = (),
    continued: Frames | None = None,
) -> Rows:
    """Return the rows of a prompt.

    Args:
        checkpoint: Where the ids come from.
        encode: Turns a piece of text into ids, nothing added.
        text: What is to be said; a blank one is `None` in the form.
        fields: Values of `form.FIELDS`; a missing, empty or blank one is `None` in the form.
        references: Frames [n, codebooks] of each speaker's voice.
        continued: Frames [n, codebooks] of the recording to continue.
    """
    ids = checkpoint
    rows = RowBuilder(ids.num_codes)
    rows.add([ids.im_start])
    before = "user\n" + HEAD + ("" if references else NOTHING)
    for number, frames in enumerate(references, start=1):
        rows.add(encode(f"{before}[S{number}]:\n"))
        rows.add([ids.audio_start])
        rows.add_frames(ids.user_slot, delayed(frames, ids.pad_code))
        rows.add([ids.audio_end])
        before = "\n"
    before = "" if references else before
    rows.add(encode(before + fields_text(fields) + (text if text.strip() else NOTHING) + TAIL))
    rows.add([ids.im_end, *encode("\n"), ids.im_start, *encode("assistant\n")])
    if continued is not None:
        rows.add([ids.audio_start])
        rows.add_frames(ids.gen_slot, delayed(continued, ids.pad_code)[: len(continued)])
    return rows.finish()
