"""The operator's own voices: the folder `custom_voice_dir` of a deployment (CV-01), read once when the server starts.

`manifest.json` (or the folder's only JSON file) names them; each is a safetensors file in the folder:

    {"model_type": "...", "schema_version": 1, "voices": {"alice": {"file": "alice.safetensors", "ref_text": "What she says."}}}

A file has `ref_audio`, float32 [n] or [n, channels] with `sample_rate` in header or manifest, or `speaker_embedding`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import OmniError, RequestError
from omni_server.voice_file import Voice, VoiceFileError, read_tensors, read_voice, voice_of
from omni_server.voice_names import checked_name, fold

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_SCHEMA_VERSION = 1
_EMBEDDING_ALIAS = "ref_spk_embedding"
_WITHOUT_WORDS = frozenset({"x_vector", "xvec", "x_vector_only"})
"""Values of `mode` for voices whose words are not used."""


def read_prepared(folder: Path, model_types: frozenset[str]) -> dict[str, Voice]:
    """Return the voices of a folder by their folded names. What cannot be used is left out with a warning.

    Args:
        folder: The folder; that it is there was checked with the deployment.
        model_types: Names of the served pipeline and of the checkpoint's model.
    """
    place = _manifest(folder)
    try:
        manifest = json.loads(place.read_text(encoding="utf-8"))
        entries = manifest["voices"]
        version, model_type = manifest.get("schema_version", _SCHEMA_VERSION), manifest.get("model_type")
        if version != _SCHEMA_VERSION or not isinstance(entries, Mapping):
            raise ValueError(f"schema_version is {version!r}, voices is {type(entries).__name__}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("custom_voice_dir: %s cannot be read: %s: %s", place, type(error).__name__, error)
        return {}
    if model_type not in model_types:
        logger.warning("custom_voice_dir: %s is for %r, so that none of its voices is used", place, model_type)
        return {}
    found: dict[str, Voice] = {}
    for name, entry in entries.items():
        try:
            voice = _voice(folder, name, entry)
            if fold(voice.name) in found:
                raise RequestError("its name comes twice")
        except (OmniError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("custom_voice_dir: the voice %r of %s is left out: %s", name, place, error)
            continue
        found[fold(voice.name)] = voice
    logger.info("custom_voice_dir: %d voices in %s", len(found), folder)
    return found


def _manifest(folder: Path) -> Path:
    others = list(folder.glob("*.json"))
    return others[0] if len(others) == 1 else folder / MANIFEST


def _voice(folder: Path, name: str, entry: Mapping[str, Any]) -> Voice:
    file = entry.get("file") or entry["filename"]
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise VoiceFileError(f"{file!r} is outside of the folder")
    plain = checked_name(name)
    header, tensors = read_tensors(path)
    if _EMBEDDING_ALIAS in tensors:
        tensors.setdefault("speaker_embedding", tensors[_EMBEDDING_ALIAS].reshape(-1))
    words = None if entry.get("mode") in _WITHOUT_WORDS else entry.get("ref_text")
    rate = entry.get("sample_rate") or header.get("sample_rate")
    if rate is None and "ref_audio" in tensors:  # what was uploaded to a server can be put here as it is
        uploaded = read_voice(path)
        return Voice(plain, uploaded.audio, words or uploaded.ref_text)
    return voice_of(tensors, path, plain, words, int(rate or 0))
