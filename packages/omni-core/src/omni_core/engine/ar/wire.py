"""What passes between the stage host, the scheduler and the worker of an AR engine, on channels that vLLM already has.

A request's inputs travel in `SamplingParams.extra_args["omni"]`. Rows for a running request come as a second request with the
same id, whose `extra_args["omni"]` has `push`. The scheduler hands rows to the worker as an attribute of its output; the worker
hands a step's codes or captured hidden states back as an attribute of its own. From there they travel as `pooling_output`, what
is short as one table for each slice of outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

KEY = "omni"
"""Our key in `extra_args`. Users cannot set it (`ar.requests`)."""
SHORT_BYTES = 1 << 16
"""Hidden states of a request up to this size share a tensor with those of others."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HEADER = 4
ROWS = "omni_rows"
"""Attribute of a scheduler's output: dict of request id to `RowBatch`."""
STATES = "omni_states"
"""Attribute of a model runner's output that captured hidden states. Its `pooler_output` holds a `CapturedRows` or None for each
request."""
CODES = "omni_codes"
"""Attribute of a model runner's output: whole numbers [n, Q]. Its `pooler_output` holds a row number or None for each
request."""


class Extra(TypedDict, total=False):
    """The value of `extra_args["omni"]`."""

    inputs: NotRequired[bytes]
    """Encoded payload for `omni_begin`, on the request itself."""
    gated: NotRequired[bool]
    """Whether positions wait for rows, on the request itself."""
    capture: NotRequired[bool]
    """Whether hidden states of the request are captured, on the request itself."""
    push: NotRequired[bool]
    """Whether this is a push to a live request."""
    final: NotRequired[bool]
    """Whether all rows are there with this push."""
    limit: NotRequired[int]
    """How many tokens the request may generate until a push says more; without it, as many as it wants."""


@dataclass(slots=True)
class CapturedRows:
    """Hidden states of one request that a step computed."""

    start: int
    """Position of the first."""
    states: torch.Tensor
    """[K, n, H] on the host: K names, n positions."""


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
        indexes, numbers = [], []
        for index, output in enumerate(part):
            if (number := output.pooling_output) is not None:
                indexes.append(index)
                numbers.append(number)
                output.pooling_output = None
        if not indexes:
            continue
        table = np.empty((len(indexes), 1 + codes.shape[1]), dtype=np.int32)
        table[:, 0] = indexes
        table[:, 1:] = codes.take(numbers, axis=0)
        part[0].pooling_output = torch.from_numpy(table)


def pack_states(outputs: Sequence[Any], slice_size: int) -> None:
    """Replace the `CapturedRows` in `pooling_output` by tensors: long ones as they are, [K, n, H], short ones in one table.

    A decode step has one position for each request, so that a table for each slice of outputs is the cheaper way; what a prompt
    brings may be large and is copied no further. A table is uint8: an int32 header [m, K, H, dtype, (index, n) for each of m
    requests], and the rows of each, [K, n, H]. It is on the slice's first output with a short one, from which indexes count.
    """
    for base in range(0, len(outputs), slice_size):
        part = outputs[base : base + slice_size]
        short: list[tuple[int, torch.Tensor]] = []
        for index, output in enumerate(part):
            held = output.pooling_output
            if held is None:
                continue
            output.pooling_output = None
            if held.states.nbytes > SHORT_BYTES:
                output.pooling_output = held.states.contiguous()
            else:
                short.append((index, held.states))
        if short:
            first = short[0][0]
            names, _, width = short[0][1].shape
            header = [len(short), names, width, _DTYPES.index(short[0][1].dtype)]
            for index, states in short:
                header += [index - first, states.shape[1]]
            parts = [torch.tensor(header, dtype=torch.int32), *(states.contiguous() for _, states in short)]
            part[first].pooling_output = torch.cat([each.reshape(-1).view(torch.uint8) for each in parts])


def unpack(outputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Take what was packed off a slice of outputs and yield it with its request's id.

    Yields:
        Codes as an array, int32 [Q], or hidden states as a tensor, [K, n, H].
    """
    for base, output in enumerate(outputs):
        packed = output.pooling_output
        if packed is None:
            continue
        output.pooling_output = None
        if packed.dim() == 3:
            yield output.request_id, packed
        elif packed.dtype == torch.uint8:
            for index, states in _read_table(packed):
                yield outputs[base + index].request_id, states
        else:
            for row in packed.numpy():
                yield outputs[base + int(row[0])].request_id, row[1:]


def _read_table(table: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    # Copied, because the bytes lie in a message at any place.
    count, names, width, dtype = table[: 4 * _HEADER].clone().view(torch.int32).tolist()
    at = 4 * (_HEADER + 2 * count)
    entries = table[4 * _HEADER : at].clone().view(torch.int32).reshape(count, 2).tolist()
    rows = table[at:].clone().view(_DTYPES[dtype])
    at = 0
    for index, length in entries:
        size = names * length * width
        yield index, rows[at : at + size].reshape(names, length, width)
        at += size
