"""What passes between the stage host, the scheduler and the worker of an AR engine, on channels that vLLM already has.

A request's inputs travel in `SamplingParams.extra_args["omni"]`. Rows for a running request come as a second request with the
same id, whose `extra_args["omni"]` has `push`. The scheduler hands rows to the worker as an attribute of its output; the worker
hands a step's codes back as an attribute of its own. From there a table for each slice of outputs travels as `pooling_output`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

KEY = "omni"
"""Our key in `extra_args`. Users cannot set it (`ar.requests`)."""
ROWS = "omni_rows"
"""Attribute of a scheduler's output: dict of request id to `RowBatch`."""
CODES = "omni_codes"
"""Attribute of a model runner's output: int32 [n, Q]. Its `pooler_output` holds a row number or None for each request."""


class Extra(TypedDict, total=False):
    """The value of `extra_args["omni"]`."""

    inputs: NotRequired[bytes]
    """Encoded payload for `omni_begin`, on the request itself."""
    gated: NotRequired[bool]
    """Whether positions wait for rows, on the request itself."""
    push: NotRequired[bool]
    """Whether this is a push to a live request."""
    final: NotRequired[bool]
    """Whether all rows are there with this push."""
    limit: NotRequired[int]
    """How many tokens the request may generate until a push says more; without it, as many as it wants."""


class RowBatch(TypedDict):
    """Rows that arrived for one request since its last step."""

    start: int
    """Position of the first row."""
    rows: list[torch.Tensor]
    final: bool


def extra_of(params: Any) -> Extra:
    """Return our part of a request's parameters, empty if there is none."""
    found: Extra | None = (params.extra_args or {}).get(KEY) if params is not None else None
    return found or Extra()


def pack(outputs: Sequence[Any], codes: np.ndarray[Any, Any], slice_size: int) -> None:
    """Replace the row numbers in `pooling_output` by one table for each slice of outputs, on the slice's first output.

    Tensors cost more than their bytes on the wire: 32 small ones take 0.7 ms, one table 0.02 ms. A table has int32 rows
    [index in the slice, codes ...].
    """
    for base in range(0, len(outputs), slice_size):
        part = outputs[base : base + slice_size]
        indexes = [index for index, output in enumerate(part) if output.pooling_output is not None]
        if not indexes:
            continue
        numbers = [part[index].pooling_output for index in indexes]
        for index in indexes:
            part[index].pooling_output = None
        table = np.empty((len(indexes), 1 + codes.shape[1]), dtype=np.int32)
        table[:, 0] = indexes
        table[:, 1:] = codes.take(numbers, axis=0)
        part[0].pooling_output = torch.from_numpy(table)


def unpack(outputs: Sequence[Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Take the tables off a slice of outputs and yield each row's request id and codes, int32 [Q]."""
    for base, output in enumerate(outputs):
        table = output.pooling_output
        if table is None:
            continue
        output.pooling_output = None
        for row in table.numpy():
            yield outputs[base + int(row[0])].request_id, row[1:]
