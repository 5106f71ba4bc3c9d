"""The voices of a checkpoint: names from the archive's table, and the voice of a name, read without trust.

Nothing of the archive is written to disk, nothing but plain files of the expected name and size is read, and of their pickles
nothing but tensors.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.errors import ConfigError, RequestError
from omni_duplex.personaplex.prompt import VoicePrompt
from omni_duplex.personaplex.shape import STREAMS, VOICES, Shape

_MEMBER = re.compile(r"(?:\./)?voices/([A-Za-z0-9_-]{1,64})\.pt")
MAX_BYTES = 64 * 1024**2
"""Longest voice that is read."""
MAX_MEMBERS = 10_000
_RING = 4
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error)


def voice_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the voices, sorted; none where the checkpoint has no archive.

    Raises:
        ConfigError: The archive is damaged.
    """
    return tuple(sorted(_walk(folder))) if (folder / VOICES).is_file() else ()


def read_voice(folder: Path, name: str, shape: Shape) -> VoicePrompt:
    """Return a voice.

    Raises:
        RequestError: There is none of this name.
        ConfigError: It is damaged, or belongs to a network of other sizes.
    """
    data = _walk(folder, name).get(name) if (folder / VOICES).is_file() else None
    if data is None:
        names = ", ".join(voice_names(folder)) or "no voice at all"
        raise RequestError(f"the voice {name[:100]!r} is unknown", param="voice", hint=f"the model has {names}")
    import torch

    where = f"{folder / VOICES}, voices/{name}.pt"
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        embeddings, columns = found["embeddings"], found["cache"]
        spoken = embeddings.to(torch.float32).reshape(len(embeddings), -1).numpy()
        ring = columns.to(torch.int64).reshape(columns.shape[-2:]).numpy()
    except Exception as error:  # a damaged pickle raises whatever it likes; it is this file's fault in any case
        raise ConfigError(f"the voice cannot be read: {error}", where=where, hint="download voices.tgz again") from error
    if spoken.shape[1] != shape.dim or ring.shape != (STREAMS, _RING) or not _are_tokens(ring, shape):
        raise ConfigError(
            f"the voice has inputs of {spoken.shape[1]} numbers and columns {list(ring.shape)}, "
            f"not {shape.dim} and [{STREAMS}, {_RING}]",
            where=where,
            hint="use voices.tgz and weights of one checkpoint",
        )
    return VoicePrompt(spoken, ring)


def _are_tokens(ring: np.ndarray[Any, Any], shape: Shape) -> bool:
    return bool(ring.min() >= 0 and ring[0].max() <= shape.text_vocab and ring[1:].max() <= shape.card)


def _walk(folder: Path, wanted: str | None = None) -> dict[str, bytes]:
    """Return the voices of the archive by name, with the bytes of the one that is wanted."""
    path = folder / VOICES
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for number, member in enumerate(archive):
                match = _MEMBER.fullmatch(member.name)
                if number >= MAX_MEMBERS:
                    raise ConfigError(f"it has more than {MAX_MEMBERS} entries", where=str(path), hint="download it again")
                if match is None or not member.isreg():
                    continue
                if member.size > MAX_BYTES:
                    raise ConfigError(
                        f"{member.name} has {member.size} bytes, more than {MAX_BYTES}",
                        where=str(path),
                        hint="download it again",
                    )
                file = archive.extractfile(member) if match[1] == wanted else None
                found[match[1]] = file.read() if file is not None else b""
    except _DAMAGE as error:
        raise ConfigError(f"{VOICES} is damaged: {error}", where=str(path), hint="download it again") from error
    return found
