"""Reference audio that was fetched and decoded before (TT-19), so that a voice used again costs no network and no decoding.

A clip is known by the hash of its locator: a URL or a data URI by its text, a local file by its path, time of change and size.
What a site serves under one URL is therefore fetched once, until the entry is pushed out. Lives in the server's process; the
models' own caches of encoded voices are others, with owners and limits of their own.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from omni_core.speech import ReferenceAudio

MAX_ENTRIES = 1024
MAX_BYTES = 512 * 1024 * 1024


class ReferenceCache:
    """Keep the clips used last, within two limits. Used on one event loop, without locks.

    Args:
        max_entries: Most clips; 0 or less keeps none.
        max_bytes: Most bytes of all samples together; 0 or less keeps none, and a clip with more is not kept.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.nbytes = 0
        """Bytes of the samples that are kept."""
        self._clips: OrderedDict[bytes, ReferenceAudio] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clips)

    @property
    def is_on(self) -> bool:
        """Whether anything can be kept."""
        return self.max_entries > 0 and self.max_bytes > 0

    def get(self, key: bytes) -> ReferenceAudio | None:
        """Return a clip of its own for each caller, None if it is not here."""
        found = self._clips.get(key)
        if found is None:
            return None
        self._clips.move_to_end(key)
        return ReferenceAudio(found.samples.copy(), found.sample_rate)

    def put(self, key: bytes, audio: ReferenceAudio) -> None:
        """Keep a copy of a clip and let those go that were used longest ago, as far as the limits demand."""
        samples = audio.samples.astype("float32", order="C", copy=True)
        if not self.is_on or samples.nbytes > self.max_bytes:
            return
        self._forget(key)
        self._clips[key] = ReferenceAudio(samples, audio.sample_rate)
        self.nbytes += samples.nbytes
        while len(self._clips) > self.max_entries or self.nbytes > self.max_bytes:
            self._forget(next(iter(self._clips)))

    def _forget(self, key: bytes) -> None:
        clip = self._clips.pop(key, None)
        if clip is not None:
            self.nbytes -= clip.samples.nbytes


def key_of(*parts: str | int) -> bytes:
    """Return the key of a clip: the hash of what it is known by."""
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()
