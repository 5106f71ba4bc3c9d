"""Recordings of requests as frames, each encoded once. Runs in the talker's stage process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.errors import RequestError
from omni_core.modelkit.cache import BoundedCache
from omni_core.payload import Payload
from omni_models_moss.rows import NO_CODE, Frames, Rows

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage
    from omni_models_moss.checkpoint import MossCheckpoint
    from omni_models_moss.reference import ReferenceEncoder

_CACHE_ENTRIES = 1024
"""A recording has 375 frames at most (30 s), so an entry of 32 codebooks has at most 96 KB."""


class Recordings:
    """Encode recordings with the codec of a stage, and keep the frames of the last ones.

    Nothing of the codec is loaded for a checkpoint that hears no recordings.

    Args:
        stage: The talker's stage.
        facts: Its checkpoint: how many codes a frame has, and whether requests may bring recordings.

    Raises:
        ConfigError: There is no codec, or a file of it is missing or damaged.
        DependencyError: The codec's repository cannot be fetched.
    """

    def __init__(self, stage: ResolvedStage, facts: MossCheckpoint) -> None:
        self.encoder = _load_encoder(stage, facts.num_codes) if facts.hears else None
        """What makes frames of recordings; None where there are none."""
        self._frames: BoundedCache[Frames] = BoundedCache(_CACHE_ENTRIES)

    def frames(self, payload: Payload, name: str = "ref_audio") -> Frames | None:
        """Return the frames [n, codes] of a recording in a request's payload, None if there is none.

        Args:
            payload: `<name>` has the samples, `<name>_rate` their rate.
            name: Which recording.

        Raises:
            RequestError: The recording cannot be used, or the checkpoint takes none.
        """
        samples: Any = payload.get(name)
        if samples is None:
            return None
        if (encoder := self.encoder) is None:
            raise RequestError("this checkpoint takes no recordings", param=name, hint=f"leave out {name!r}")
        samples, rate = np.ascontiguousarray(samples, dtype=np.float32), int(payload[f"{name}_rate"])
        key = (hashlib.sha256(samples.data).digest(), samples.shape, rate)
        return self._frames.get(key, lambda: encoder.encode(samples, rate))


def cache_key(rows: Rows, slots: Sequence[int], *frames: Frames | None) -> str | None:
    """Return what makes two prompts equal beside their text ids, for `EngineInput.cache_key`: the frames in them, in order.

    None where a text id stands for a frame in a row that has none, because the text spells it: such a prompt could pass for one
    with a frame there. The empty string where there are no frames.

    Args:
        rows: The prompt.
        slots: The text ids that stand for frames.
        frames: The frames of the recordings.
    """
    if (np.isin(rows.text_ids, slots) & (rows.codes == NO_CODE).all(axis=1)).any():
        return None
    given = [each for each in frames if each is not None]
    if not given:
        return ""
    digest = hashlib.sha256()
    for each in given:
        digest.update(f"{each.shape}".encode() + np.ascontiguousarray(each).tobytes())
    return digest.hexdigest()


def _load_encoder(stage: ResolvedStage, num_codes: int) -> ReferenceEncoder:
    from omni_models_moss.reference import ReferenceEncoder  # torch: only in the stage's process

    return ReferenceEncoder.load(stage, num_codes)
