"""One voice in one safetensors file: its recording or its embedding, and in the header who it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.errors import ServiceError
from omni_core.speech import ReferenceAudio

SCHEMA_VERSION = 1
_HEADER_KEY = "omni_voice"
_AUDIO = "ref_audio"
_EMBEDDING = "speaker_embedding"


class VoiceFileError(ServiceError):
    """Report a file that holds no voice."""


@dataclass(frozen=True)
class VoiceFacts:
    """What a voice's file says in its header."""

    name: str
    consent: str
    created_at: int
    """Seconds since 1970."""
    file_size: int
    """Bytes of the upload."""
    mime_type: str
    sample_rate: int = 0
    """Hz; 0 for an embedding."""
    embedding_dim: int | None = None
    ref_text: str | None = None
    """What the recording says."""
    speaker_description: str | None = None
    schema_version: int = SCHEMA_VERSION

    def listed(self) -> dict[str, Any]:
        """Return the facts as GET /v1/audio/voices shows them."""
        entry: dict[str, Any] = {
            "name": self.name,
            "consent": self.consent,
            "created_at": self.created_at,
            "file_size": self.file_size,
            "mime_type": self.mime_type,
            "embedding_source": "audio" if self.embedding_dim is None else "direct",
            "embedding_dim": self.embedding_dim,
        }
        optional = {"ref_text": self.ref_text, "speaker_description": self.speaker_description}
        return entry | {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True)
class Voice:
    """A voice that requests can name: a recording with or without its words, or an embedding."""

    name: str
    audio: ReferenceAudio | None = None
    ref_text: str | None = None
    embedding: tuple[float, ...] | None = None


def pack_voice(facts: VoiceFacts, audio: ReferenceAudio | None, embedding: tuple[float, ...] | None) -> bytes:
    """Return the file of a voice."""
    from safetensors.numpy import save

    tensors = {}
    if audio is not None:
        tensors[_AUDIO] = np.ascontiguousarray(audio.samples, np.float32)
    if embedding is not None:
        tensors[_EMBEDDING] = np.asarray(embedding, np.float32)
    return save(tensors, {_HEADER_KEY: json.dumps(asdict(facts), ensure_ascii=False)})


def read_facts(path: Path) -> VoiceFacts:
    """Return the header of a voice's file.

    Raises:
        VoiceFileError: It is none, or has another version.
        FileNotFoundError: It is gone.
    """
    return _facts(_open(path)[0], path)


def read_voice(path: Path) -> Voice:
    """Return the voice in a file.

    Raises:
        VoiceFileError: There is none.
        FileNotFoundError: It is gone.
    """
    header, tensors = _open(path, with_tensors=True)
    facts = _facts(header, path)
    return voice_of(tensors, path, facts.name, facts.ref_text, facts.sample_rate)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    """Return the header's texts and the arrays of any safetensors file.

    Raises:
        VoiceFileError: It is none.
        FileNotFoundError: It is gone.
    """
    return _open(path, with_tensors=True)


def voice_of(tensors: dict[str, np.ndarray[Any, Any]], path: Path, name: str, ref_text: str | None, sample_rate: int) -> Voice:
    """Return the voice that the arrays of a file are.

    Raises:
        VoiceFileError: They are none that is known.
    """
    audio, embedding = tensors.get(_AUDIO), tensors.get(_EMBEDDING)
    if audio is not None and audio.dtype == np.float32 and audio.ndim in (1, 2) and sample_rate > 0:
        return Voice(name, ReferenceAudio(audio, sample_rate), ref_text)
    if embedding is not None and embedding.ndim == 1 and np.isfinite(embedding).all():
        return Voice(name, embedding=tuple(map(float, embedding)))
    raise VoiceFileError(
        f"there is no voice in {path.name}",
        where=str(path),
        hint=f"it needs {_AUDIO!r}, float32 with a sample rate, or {_EMBEDDING!r}",
    )


def _open(path: Path, *, with_tensors: bool = False) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()} if with_tensors else {}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise VoiceFileError(f"{path.name} cannot be read: {error}", where=str(path)) from error


def _facts(header: dict[str, str], path: Path) -> VoiceFacts:
    try:
        found = json.loads(header[_HEADER_KEY])
        if found.get("schema_version") != SCHEMA_VERSION:
            raise VoiceFileError(f"{path.name} has the version {found.get('schema_version')!r}", where=str(path))
        known = {item.name for item in fields(VoiceFacts)}
        return VoiceFacts(**{key: value for key, value in found.items() if key in known})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise VoiceFileError(f"{path.name} does not say whose voice it is", where=str(path)) from error
