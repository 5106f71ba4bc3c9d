"""The talker's prompt: pure functions from a request to its rows.

    <|im_start|>system\n a fixed text <|im_end|>\n
    with a recording: <|im_start|>context\n a fixed text, one row for each frame, <|im_end|>\n
    <|im_start|>assistant\n the first 12 ids of the text, beside the last of them the mark that speech begins

The other ids of the text stand beside the frames, one with each; behind the text there is a pad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omni_models_moss.rows import NO_CODE, Encode, Frames, RowBuilder, Rows

if TYPE_CHECKING:
    from omni_models_moss.realtime.checkpoint import Checkpoint

SYSTEM = (
    "<|im_start|>system\n"
    "You are a highly expressive text-to-speech (TTS) engine developed by Mosi Intelligence. \n"
    "You possess natural language understanding, emotional modeling, and multi-style speech generation capabilities, "
    "allowing you to generate the corresponding speech based on the text given in the assistant."
    "<|im_end|>\n"
)
"""What the released model was trained with."""
CONTEXT = "<|im_start|>context\nThe assistant section should be synthesized using the following voice timbre:"
ANSWER = "<|im_start|>assistant\n"


def make_rows(
    checkpoint: Checkpoint, encode: Encode, text: str, *, reference: Frames | None = None
) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the rows of a prompt, and the ids of the text that stand beside the frames.

    Args:
        checkpoint: Where the ids come from.
        encode: Turns a piece of text into ids, nothing added; special tokens in it are read as such.
        text: What is to be said, at least one id.
        reference: Frames [n, codebooks] of a voice to imitate.
    """
    rows = RowBuilder(checkpoint.num_codes)
    if reference is None:
        rows.add(encode(SYSTEM))
    else:
        rows.add(encode(SYSTEM + CONTEXT))
        rows.add_frames(checkpoint.reference_pad, reference)
        rows.add(encode("<|im_end|>\n"))
    rows.add(encode(ANSWER))
    ids = list(encode(text))
    rows.add(ids[: checkpoint.prefill][:-1])
    mark = np.full((1, checkpoint.num_codes), NO_CODE, np.int32)
    mark[0, 0] = checkpoint.begin_code
    rows.add_frames(ids[: checkpoint.prefill][-1], mark)
    return rows.finish(), np.asarray(ids[checkpoint.prefill :], dtype=np.int32)
