"""Checks of a checkpoint's files before an engine starts, so that the message names the file. Runs in the stage host."""

from __future__ import annotations

import json
from pathlib import Path

from omni_core.errors import StageStartError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")


def check_checkpoint(folder: Path, *, where: str) -> None:
    """Check that a checkpoint's configuration and weight files are there and whole.

    Raises:
        StageStartError: A file is missing, cut short or not what its name says.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise StageStartError(f"{config} does not exist", where=where, hint="give the folder of a checkpoint")
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StageStartError(f"{config} is no JSON: {error}", where=where, hint="fetch the file again") from error
    for path in sorted(folder.glob("*.safetensors")):
        _check_safetensors(path, where)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        _check_index(index, where)


def _check_safetensors(path: Path, where: str) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise StageStartError(f"{path} is cut short: {size} bytes do not hold its header", where=where, hint=_AGAIN)
        try:
            header = json.loads(file.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageStartError(f"{path} is no safetensors file: {error}", where=where, hint=_AGAIN) from error
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        raise StageStartError(f"{path} has {size} bytes, but its header says {wanted}", where=where, hint=_AGAIN)


_AGAIN = "fetch the file again"


def _check_index(index: Path, where: str) -> None:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise StageStartError(f"{index} is no index of weight files: {error}", where=where, hint=_AGAIN) from error
    missing = sorted(name for name in names if not (index.parent / name).is_file())
    if missing:
        raise StageStartError(f"{index.parent} lacks {', '.join(missing)}", where=where, hint="fetch the missing files")


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)
