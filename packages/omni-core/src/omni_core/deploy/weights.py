"""How many bytes of weights a stage loads, from the headers of safetensors files; no tensor is read."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline, ResolvedStage

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself; a longer header is no header."""

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
_CONVERTED = frozenset({"F16", "BF16", "F32", "F64"})
"""Types that an engine turns into the stage's `dtype` when it loads."""
_DTYPES = {"bfloat16": 16, "float16": 16, "half": 16, "float32": 32, "float": 32}


@dataclass(frozen=True)
class Tensor:
    """What a header says about one tensor."""

    dtype: str
    elements: int

    def bytes_as(self, dtype: str | None) -> int:
        """Return the bytes it takes once loaded with a stage's `dtype`; None keeps the file's type."""
        bits = _BITS.get(self.dtype, 32)
        if self.dtype in _CONVERTED and dtype in _DTYPES:
            bits = _DTYPES[dtype]
        return math.ceil(self.elements * bits / 8)


@dataclass(frozen=True)
class Weights:
    """The weights of one stage. Unknown sizes are None."""

    total: int | None
    """Bytes in all, before they are split among ranks."""
    what: str
    """Which weights these are: `whole checkpoint`, `speech_tokenizer/`, `thinker.*`; or why it is not known."""


def stage_weights(stage: ResolvedStage, resolved: ResolvedPipeline) -> Weights:
    """Return what a stage loads.

    A stage with a folder of its own (`model_subdir`) loads that. Stages that share a folder load the tensors below the name of
    their part of the configuration, `thinker_config` being `thinker.`, where there are such. A stage that reads the whole
    configuration loads what the others do not; else the whole checkpoint counts.

    Raises:
        ConfigError: A file is damaged.
    """
    subdir = stage.topology.model_subdir
    folder = Path(stage.model, subdir or "")
    named = f"{subdir}/" if subdir else "whole checkpoint"
    tensors = read_headers(folder)
    if not tensors:
        total = _indexed_total(folder)
        return Weights(total, f"{named} by its index" if total is not None else "no safetensors files")
    dtype = stage.engine_args.get("dtype")
    prefix = _prefix(stage)
    chosen = {name: tensor for name, tensor in tensors.items() if prefix and name.startswith(prefix)}
    theirs = _other_prefixes(stage, resolved)
    if chosen and theirs is not None:
        named, tensors = f"{prefix}*", chosen
    elif prefix is None and theirs:
        rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(theirs)}
        if len(rest) < len(tensors):
            named, tensors = f"all but {', '.join(f'{name}*' for name in theirs)}", rest
    return Weights(sum(tensor.bytes_as(dtype) for tensor in tensors.values()), named)


def _prefix(stage: ResolvedStage) -> str | None:
    name = stage.topology.hf_config_name
    return None if name is None else name.partition(".")[0].removesuffix("_config") + "."


def _other_prefixes(stage: ResolvedStage, resolved: ResolvedPipeline) -> tuple[str, ...] | None:
    """Return the parts that other stages read of the folder that a stage reads, None for a folder of its own."""
    place = (stage.model, stage.topology.model_subdir)
    others = [
        other
        for other in resolved.stages
        if other.stage_id != stage.stage_id and (other.model, other.topology.model_subdir) == place
    ]
    return tuple(prefix for other in others if (prefix := _prefix(other))) if others else None


def read_headers(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of a folder's safetensors files by name; where there is an index, only of the files it names.

    Raises:
        ConfigError: A file is damaged.
    """
    found: dict[str, Tensor] = {}
    for file in _files(folder):
        for name, entry in _read_header(file).items():
            if name != "__metadata__":
                found[name] = _tensor(entry, name, file)
    return found


def _files(folder: Path) -> Iterator[Path]:
    index = _load_index(folder)
    if index is not None:
        files = [folder / name for name in sorted(set(index.get("weight_map", {}).values()))]
        if files and all(file.is_file() for file in files):
            yield from files
            return
    elif folder.is_dir():
        yield from sorted(folder.glob("*.safetensors"))


def _read_header(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(stream.read(length))
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise ConfigError(f"{file} is no safetensors file: {error}", hint="fetch the checkpoint again") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{file} is no safetensors file: its header is no object", hint="fetch the checkpoint again")
    return header


def _tensor(entry: Any, name: str, file: Path) -> Tensor:
    try:
        return Tensor(str(entry["dtype"]), math.prod(int(size) for size in entry["shape"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: the header's entry {name!r} is wrong", hint="fetch the checkpoint again") from error


def _load_index(folder: Path) -> Mapping[str, Any] | None:
    path = next((path for path in sorted(folder.glob("*.safetensors.index.json")) if path.is_file()), None)
    if path is None:
        return None
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="fetch the checkpoint again") from error
    if not isinstance(index, dict) or not isinstance(index.get("weight_map", {}), dict):
        raise ConfigError(f"{path} is no index of safetensors files", hint="fetch the checkpoint again")
    return index


def _indexed_total(folder: Path) -> int | None:
    """Return the total that an index states, for checkpoints whose files are not here."""
    metadata = (_load_index(folder) or {}).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if isinstance(total, (int, float)) else None
