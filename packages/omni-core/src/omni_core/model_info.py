"""Facts of a checkpoint from its JSON files, without transformers and without reading weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError, DependencyError

_METADATA = ("*.json", "*.py", "*.model", "*.txt")


@dataclass(frozen=True)
class ModelInfo:
    """One checkpoint."""

    reference: str
    """What the user wrote: a folder or the name of a repository on the Hugging Face Hub."""
    path: Path
    """The local folder."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The content of config.json; empty for a checkpoint that has model_index.json instead."""

    @property
    def model_type(self) -> str | None:
        """`model_type` of config.json."""
        found = self.config.get("model_type")
        return found if isinstance(found, str) and found else None

    @property
    def architectures(self) -> tuple[str, ...]:
        """`architectures` of config.json, or the one name of `architecture`."""
        found = self.config.get("architectures")
        if isinstance(found, list):
            return tuple(name for name in found if isinstance(name, str))
        single = self.config.get("architecture")
        return (single,) if isinstance(single, str) else ()

    @property
    def diffusers_class(self) -> str | None:
        """`_class_name` of model_index.json, where there is such a file."""
        if not (self.path / "model_index.json").is_file():
            return None
        found = self.load_json("model_index.json").get("_class_name")
        return found if isinstance(found, str) else None

    def load_json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file of the checkpoint.

        Raises:
            ConfigError: The file is missing, cannot be read, or holds no JSON object; the message names it.
        """
        return _load_object(self.path / name)


def read_model_info(reference: str | Path, *, revision: str | None = None, weights: bool = True) -> ModelInfo:
    """Return the facts of a checkpoint, fetching it from the Hugging Face Hub unless it is a local folder.

    An existing folder never touches the network.

    Args:
        reference: A folder, or the name of a repository such as `org/name`.
        revision: Branch, tag or commit of the repository.
        weights: Whether to fetch everything; otherwise only the small files that say what the model is.

    Raises:
        ConfigError: There is no such folder, or its config.json is missing or no JSON object.
        DependencyError: The checkpoint cannot be fetched.
    """
    text = str(reference)
    folder = Path(text).expanduser()
    if not text.strip():
        raise ConfigError("no model is named", hint="give a checkpoint folder or a repository of the Hugging Face Hub")
    if folder.is_file():
        raise ConfigError(f"{text} is a file", hint="name the folder of the checkpoint")
    if not folder.is_dir():
        if text.startswith(("/", ".", "~")) or text.count("/") > 1:
            raise ConfigError(f"there is no folder {text}", hint="correct the path of the checkpoint")
        folder = _fetch(text, revision, weights)
    path = folder.resolve()
    has_config = (path / "config.json").is_file()
    if not has_config and not (path / "model_index.json").is_file():
        raise ConfigError(f"{path / 'config.json'} is missing", hint=f"{text} must be the folder of a whole checkpoint")
    return ModelInfo(text, path, _load_object(path / "config.json") if has_config else {})


def _load_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing", hint="the checkpoint is not complete; fetch it again") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="check the file and its permissions") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint="the file is damaged; fetch the checkpoint again") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object", hint="the file is damaged; fetch the checkpoint again")
    return found


def _fetch(name: str, revision: str | None, weights: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise DependencyError(
            f"there is no folder {name!r}, and huggingface_hub is not there to fetch it",
            hint="pip install huggingface_hub, or name a local folder",
        ) from None
    patterns = None if weights else list(_METADATA)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises classes of requests, httpx and its own; each ends the same way
        kind = type(error).__name__
        raise DependencyError(
            f"cannot fetch {name!r}: {kind}: {_first_line(error)}", hint=_FETCH_HINTS.get(kind, _DEFAULT_HINT)
        ) from error


_DEFAULT_HINT = "check the name and the network, or name a local folder"
_FETCH_HINTS = {
    "GatedRepoError": "accept the model's terms on huggingface.co and set HF_TOKEN",
    "RepositoryNotFoundError": "check the name; for a private repository set HF_TOKEN",
    "RevisionNotFoundError": "check --revision",
    "HFValidationError": "write ORG/NAME, or the path of a local folder",
    "LocalEntryNotFoundError": "it is not in the local cache: allow the network (HF_HUB_OFFLINE) or name a local folder",
    "OfflineModeIsEnabled": "it is not in the local cache: unset HF_HUB_OFFLINE or name a local folder",
}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"
