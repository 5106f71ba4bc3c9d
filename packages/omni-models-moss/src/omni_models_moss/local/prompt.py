"""The talker's prompt: pure functions from a request to its rows.

A prompt asks for speech in a form (`omni_models_moss.form`). A recording to imitate stands in the form, one to continue behind
it, where the talker's own frames follow:

    <|im_start|> user\\n <user_inst>\\n- Reference(s):\\n
    None   or   audio_start, one row for each frame, audio_end
    \\n- Instruction:\\n ... \\n- Text:\\n
    the text
    \\n</user_inst> <|im_end|> \\n <|im_start|> assistant\\n audio_start
    one row for each frame to be continued

Each piece is tokenized by itself and the ids are joined, so that no token spans two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_models_moss.form import HEAD, NOTHING, TAIL, fields_text
from omni_models_moss.rows import Encode, Frames, RowBuilder, Rows

if TYPE_CHECKING:
    from omni_models_moss.local.checkpoint import Checkpoint


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
        fields: Values of `form.FIELDS`; a missing, empty or blank one is `None` in the form.
        reference: Frames [n, codebooks] of a voice to imitate.
        continued: Frames [n, codebooks] of the recording to continue.
    """
    ids = checkpoint
    rows = RowBuilder(ids.num_codes)
    rows.add([ids.im_start, *encode("user\n"), *encode(HEAD)])
    if reference is None:
        rows.add(encode(NOTHING))
    else:
        rows.add([ids.audio_start])
        rows.add_frames(ids.user_slot, reference)
        rows.add([ids.audio_end])
    rows.add(encode(fields_text(fields)))
    rows.add(encode(text))
    rows.add([*encode(TAIL), ids.im_end, *encode("\n"), ids.im_start, *encode("assistant\n"), ids.audio_start])
    if continued is not None:
        rows.add_frames(ids.assistant_slot, continued)
    return rows.finish()
