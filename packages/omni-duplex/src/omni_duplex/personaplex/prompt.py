"""What a session begins with, as columns of the network: a voice, silence, a text, silence.

Frame t of a stream with a delay of 1 is in column t + 1. The network reads column t and says column t + 1. Column 0 holds
the tokens for "nothing yet", and so do the late streams of column 1: of the very first frame nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_duplex.personaplex.shape import CODES, DELAYS, SILENT_FRAMES, STREAMS, Shape

Ints = np.ndarray[Any, np.dtype[np.int64]]
LATE = np.array(DELAYS) == 1
"""Which streams are a frame late."""


@dataclass(frozen=True)
class VoicePrompt:
    """A voice as it is published: what the network was fed while it heard a recording of it."""

    embeddings: np.ndarray[Any, np.dtype[np.float32]]
    """float32 [n, dim], the inputs of the first n positions."""
    columns: Ints
    """int64 [17, 4], the columns around position n, column t at t modulo 4."""


@dataclass(frozen=True)
class Prompt:
    """What the network is fed before the first frame of a conversation."""

    columns: Ints
    """int64 [n, 17], inputs behind those of the voice."""
    last: Ints
    """int64 [17], the column that the first frame reads."""
    late: Ints
    """int64 [17], what of the next column is known already: the late streams."""


def wrapped(text: str) -> str:
    """Return a text prompt between the tags that the model knows; empty stays empty."""
    text = text.strip()
    if not text or (text.startswith("<system>") and text.endswith("<system>")):
        return text
    return f"<system> {text} <system>"


def make_prompt(shape: Shape, text: Sequence[int], voice: VoicePrompt | None) -> Prompt:
    """Return the columns of a prompt.

    Args:
        shape: Sizes and the codes of silence.
        text: Tokens of the text prompt, one for each frame.
        voice: The voice, None to begin without one.
    """
    initial = np.full(STREAMS, shape.card, np.int64)
    initial[0] = shape.text_vocab
    silent = [shape.text_pad] * SILENT_FRAMES
    tokens = [*silent, *text, *silent]
    if voice is None:
        last, late = initial, initial
        tokens = tokens[1:]  # the very first frame is not read
    else:
        place = len(voice.embeddings)
        last, late = voice.columns[:, place % 4], voice.columns[:, (place + 1) % 4]
    columns = []
    for token in tokens:
        columns.append(last)
        frame = np.array([token, *shape.silence, *shape.sine], np.int64)
        assert len(frame) == STREAMS == 1 + 2 * CODES, "both sides have eight codes"
        last, late = np.where(LATE, late, frame), frame
    return Prompt(np.array(columns, np.int64).reshape(-1, STREAMS), last, late)
