"""The 3-D positions of a talker's prompt: a patch of an image or video lies at a time, a height and a width.

A talker may read a part of what the thinker read, so positions are computed anew over that part; images and videos keep the
shapes that they have in the whole prompt. Runs in the talker's stage process.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_core.errors import ServiceError

Ints = np.ndarray[Any, np.dtype[np.int64]]
_TEXT, _IMAGE, _VIDEO, _AUDIO = range(4)


@dataclass(frozen=True)
class MediaFacts:
    """What a checkpoint says about media in a prompt."""

    image: int
    """Text id that stands for each of an image's positions."""
    video: int
    audio: int
    merge_size: int
    """Patches of an image along one side that become one position."""
    positions_per_second: float
    """Temporal positions of a second of video."""
    shared_marks: bool = False
    """Whether the two marks before a video with its sound have one position, and the two behind it another."""

    def is_media(self, ids: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which ids stand for media, bool [P]."""
        return np.isin(ids, (self.image, self.video, self.audio))


@dataclass(frozen=True)
class _Shapes:
    """Shapes of the media of a prompt, in order."""

    images: Ints
    """[n, 3] patches along time, height and width."""
    videos: Ints
    seconds: np.ndarray[Any, Any]
    """Seconds that a video's step along time takes, [n]; videos behind the last one have one second."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> _Shapes:
        seconds = facts.get("second_per_grid_ts")
        seconds = facts.get("video_second_per_grid") if seconds is None else seconds
        steps = np.asarray([] if seconds is None else seconds, float).reshape(-1)
        return cls(_grids(facts, "image_grid_thw"), _grids(facts, "video_grid_thw"), steps)


def _grids(facts: Mapping[str, Any], name: str) -> Ints:
    found = facts.get(name)
    return np.zeros((0, 3), np.int64) if found is None else np.asarray(found, dtype=np.int64).reshape(-1, 3)


def prompt_positions(
    media: MediaFacts, ids: Ints, kept: np.ndarray[Any, Any], facts: Mapping[str, Any], tail: int
) -> tuple[Ints, int] | None:
    """Return positions [3, n] of the ids that are kept and of `tail` more, and what later positions are moved by.

    None means that positions count up, as they do without images and videos: audio takes one after the other, as text does.
    Behind a video with its sound they go on from whichever of the two ends the block, as transformers has it.

    Args:
        media: The checkpoint's facts.
        ids: The whole prompt [P].
        kept: Which of them the talker reads, bool [P].
        facts: Shapes of the media in the whole prompt, by the names of the thinker's processor.
        tail: Rows of text behind.

    Raises:
        ServiceError: The shapes do not belong to these ids.
    """
    kinds = np.select([ids == media.image, ids == media.video, ids == media.audio], [_IMAGE, _VIDEO, _AUDIO], _TEXT)
    if not (np.isin(kinds, (_IMAGE, _VIDEO)) & kept).any():
        return None
    shapes = _Shapes.of(facts)
    numbers = [0, 0]  # images and videos so far
    parts: list[Ints] = []
    following = 0
    runs = _runs(kinds)
    marked = [media.shared_marks and _has_sound(kinds[start:end]) for start, end in runs]
    for (start, end), behind, before in zip(runs, [False, *marked], [*marked[1:], False], strict=False):
        block = kinds[start:end]
        if block[0] == _TEXT:
            part = _text(int(kept[start:end].sum()), behind=behind, before=before)
        else:
            part = _block(block, shapes, numbers, media)
            part = part if kept[start] else part[:, :0]
        parts.append(part + following)
        following = int(parts[-1][:, _last_piece(block) :].max()) + 1 if part.size else following
    parts.append(_line(tail) + following)
    positions = np.concatenate(parts, axis=1)
    return positions, int(positions.max()) + 1 - positions.shape[1]


def _runs(kinds: Ints) -> list[tuple[int, int]]:
    """Return where text and media begin and end; the audio of a video lies between its patches, in one block with them."""
    groups = np.where(kinds == _AUDIO, _VIDEO, kinds)
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(kinds)]
    return list(itertools.pairwise(cuts))


def _has_sound(block: Ints) -> bool:
    return bool((block == _VIDEO).any() and (block == _AUDIO).any())


def _last_piece(block: Ints) -> int:
    """Return where the last piece of one kind begins."""
    changes = np.flatnonzero(np.diff(block))
    return int(changes[-1]) + 1 if len(changes) else 0


def _text(length: int, *, behind: bool, before: bool) -> Ints:
    """Return the positions of text; behind or before a video with its sound two marks have one."""
    line = np.arange(length, dtype=np.int64)
    if behind:
        line[1:] -= 1
    if before:
        line[-1:] -= 1
    return np.broadcast_to(line, (3, length))


def _line(length: int) -> Ints:
    return np.broadcast_to(np.arange(length, dtype=np.int64), (3, length))


def _block(block: Ints, shapes: _Shapes, numbers: list[int], media: MediaFacts) -> Ints:
    """Return the positions [3, n] of one image, video or audio, from 0."""
    out = np.empty((3, len(block)), dtype=np.int64)
    is_audio = block == _AUDIO
    out[:, is_audio] = _line(int(is_audio.sum()))
    if is_audio.all():
        return out
    is_video = bool(block[0] != _IMAGE)
    grids, number = (shapes.videos if is_video else shapes.images), numbers[is_video]
    numbers[is_video] += 1
    seconds = 1.0
    if is_video and number < len(shapes.seconds):
        seconds = float(shapes.seconds[number])
    patches = _patches(grids[number], seconds, media) if number < len(grids) else out[:, :0]
    if patches.shape[1] != int((~is_audio).sum()):
        what = "video" if is_video else "image"
        raise ServiceError(f"the shape of {what} {number + 1} does not belong to the {int((~is_audio).sum())} positions it has")
    out[:, ~is_audio] = patches
    return out


def _patches(grid: Ints, seconds: float, media: MediaFacts) -> Ints:
    steps, height, width = int(grid[0]), int(grid[1]) // media.merge_size, int(grid[2]) // media.merge_size
    found = np.indices((steps, height, width)).reshape(3, -1).astype(np.int64)
    found[0] = (found[0] * (seconds * media.positions_per_second)).astype(np.int64)
    return found
