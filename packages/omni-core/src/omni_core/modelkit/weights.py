"""Reading a checkpoint's tensors by name, so that a file that is missing, cut short or of another model is an error at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import read_json

_SHOWN = 5


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file without reading the tensors; the file's length is checked.

    Raises:
        ConfigError: The file is missing, cut short or not a safetensors file.
    """
    if not path.is_file():
        raise ConfigError(f"there is no {path.name}", where=str(path), hint="download the whole checkpoint")
    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"{path.name} is cut short or damaged: {error}", where=str(path), hint="download the file again"
        ) from error


class TensorReader:
    """Hand out the tensors under one prefix of a checkpoint, once each, in float32.

    Args:
        files: The safetensors files to look in.
        prefix: Names are taken relative to it; tensors outside it belong to others.

    Raises:
        ConfigError: A file is missing or damaged.
    """

    def __init__(self, files: tuple[Path, ...], prefix: str) -> None:
        self.prefix = prefix
        self._files = files
        self._where: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            for name, shape in read_header(path).items():
                if name.startswith(prefix):
                    self._where[name] = path
                    self._shapes[name] = shape
        self._left = set(self._where)

    @classmethod
    def of_folder(cls, folder: Path, prefix: str) -> TensorReader:
        """Return a reader of `model.safetensors`, or of the shards that `model.safetensors.index.json` lists."""
        index = folder / "model.safetensors.index.json"
        if not index.is_file():
            return cls((folder / "model.safetensors",), prefix)
        placed: Mapping[str, str] = read_json(index).get("weight_map", {})
        shards = sorted({shard for name, shard in placed.items() if name.startswith(prefix)})
        if not shards:
            raise ConfigError(f"the checkpoint has no tensors {prefix}*", where=str(index), hint="use another checkpoint")
        return cls(tuple(folder / shard for shard in shards), prefix)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under the prefix, without it."""
        return tuple(sorted(name.removeprefix(self.prefix) for name in self._where))

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor as float32.

        Raises:
            ConfigError: It is missing or has another shape.
        """
        full = self.prefix + name
        if full not in self._where:
            raise ConfigError(
                f"the checkpoint lacks the tensor {full}", where=self._place, hint="use the file that belongs to this model"
            )
        if self._shapes[full] != shape:
            raise ConfigError(
                f"the tensor {full} has the shape {list(self._shapes[full])} instead of {list(shape)}",
                where=str(self._where[full]),
                hint="use the config.json and the weights of one and the same checkpoint",
            )
        with safe_open(self._where[full], framework="pt") as file:
            found: Tensor = file.get_tensor(full)
        self._left.discard(full)
        return found.to(torch.float32)

    def skip(self, name: str) -> None:
        """Note that a tensor is known and has no use here."""
        self._left.discard(self.prefix + name)

    def finish(self) -> None:
        """Check that every tensor was taken.

        Raises:
            ConfigError: Some were not; the checkpoint belongs to another model.
        """
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ConfigError(
                f"the checkpoint has tensors that this model does not know: {', '.join(names[:_SHOWN])}{more}",
                where=self._place,
                hint="use the config.json and the weights of one and the same checkpoint",
            )

    @property
    def _place(self) -> str:
        return ", ".join(map(str, self._files))
