"""What stages that decode codes to audio have in common: where they compute, which codes they take, sleep and waking."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from omni_core.errors import ConfigError, RequestError
from omni_core.payload import Payload
from omni_core.runner import LightChunk, LightModel
from omni_core.stage import ResolvedStage

_DTYPES: dict[str, torch.dtype | None] = {
    "auto": None,
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
_DEVICES = {"rocm": "cuda"}
"""Platforms whose name in torch is another one."""


def stage_device(stage: ResolvedStage) -> str:
    """Return torch's name of the device that a stage computes on."""
    return _DEVICES.get(stage.platform, stage.platform)


def stage_dtype(stage: ResolvedStage) -> torch.dtype | None:
    """Return the type that a stage is asked to compute in, None where the checkpoint decides.

    Raises:
        ConfigError: The name is none of a type.
    """
    name = str(stage.engine_args.get("dtype") or "auto").removeprefix("torch.")
    if name not in _DTYPES:
        raise ConfigError(
            f"stage {stage.name} cannot use dtype {name!r}", where="dtype", hint=f"choose one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]


def payload_rows(payload: Payload, key: str) -> np.ndarray[Any, Any]:
    """Return an array of the payload; one that is not there has no rows."""
    found = payload.get(key)
    return np.zeros((0, 0), np.int64) if found is None else np.atleast_1d(found)


class Decoder(Protocol):
    """What a codec's decoder offers beside decoding."""

    @property
    def device(self) -> torch.device:
        """Where it decodes."""

    def move(self, device: torch.device | None = None) -> None:
        """Move the weights to a device, by default to the one that decodes."""


class CodecStage(LightModel):
    """A stage around a codec's decoder. Streams keep their states while the weights are away."""

    decoder: Any
    """A `Decoder`."""

    def sleep(self) -> None:
        """Move the weights to the host's memory and give the device's back."""
        decoder: Decoder = self.decoder
        decoder.move(torch.device("cpu"))
        if decoder.device.type != "cpu":
            torch.accelerator.empty_cache()

    def wake(self) -> None:
        """Move the weights back."""
        decoder: Decoder = self.decoder
        decoder.move()

    @staticmethod
    def checked_codes(
        chunk: LightChunk, key: str, *, books: int, size: int, fewer: bool = False, begun: bool = False
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the codes of a chunk, int64 [frames, books].

        Args:
            chunk: The chunk.
            key: `codes`, or `ref_codes` for those of a reference, which come with the first frames or not at all.
            books: How many codebooks there are.
            size: Entries of each.
            fewer: Whether the codes of the first few codebooks alone will do.
            begun: Whether the request had frames before.

        Raises:
            RequestError: They are no such codes.
        """
        rows = payload_rows(chunk.payload, key)
        where = f"request {chunk.request_id}"
        if rows.size == 0:
            return np.zeros((0, books), np.int64)
        width = rows.shape[1] if rows.ndim == 2 else 0
        if rows.dtype.kind not in "iu" or not (1 <= width <= books if fewer else width == books):
            raise RequestError(
                f"{key} must be whole numbers [frames, {books}{' or fewer' if fewer else ''}], "
                f"not {rows.dtype} {list(rows.shape)}",
                where=where,
                hint="send one row for each frame",
            )
        if rows.min() < 0 or rows.max() >= size:
            raise RequestError(
                f"{key} holds ids from {rows.min()} to {rows.max()}, but the codebooks have {size} rows",
                where=where,
                hint=f"send codes from 0 to {size - 1}, without pads and control ids",
            )
        if key == "ref_codes" and begun:
            raise RequestError("ref_codes came after the first frames", where=where, hint="send them with the first payload")
        return rows.astype(np.int64)
