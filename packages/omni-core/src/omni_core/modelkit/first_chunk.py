"""The size of the first payload on the way to a codec, where it asks for more than the later ones have (TT-15)."""

from __future__ import annotations

import functools
import logging

from omni_core.deploy.notes import warn

logger = logging.getLogger(__name__)


def cut_request(asked: int, steady: int) -> int:
    """Return the frames of a request's first payload, which has at most those of a later one; say once that it was cut.

    Args:
        asked: The request's `initial_codec_chunk_frames`.
        steady: Frames of the later payloads, `codec_chunk_frames`.
    """
    if asked > steady:
        _say_cut(asked, steady)
    return min(asked, steady)


@functools.lru_cache(maxsize=256)
def _say_cut(asked: int, steady: int) -> None:
    logger.warning("a request's initial_codec_chunk_frames %d is cut to codec_chunk_frames %d (said once)", asked, steady)


def advise_cut(key: str, size: int, steady: int, where: str) -> None:
    """Warn about an edge's option that asks for more frames than a payload has.

    Args:
        key: The option.
        size: Its value.
        steady: The edge's `codec_chunk_frames`.
        where: What messages call their place.
    """
    if size > steady:
        warn(f"{where}: {key} {size} is cut to codec_chunk_frames {steady}")
