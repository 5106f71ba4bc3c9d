"""Rows of the thinker's embeddings that a talker reads by itself: the marks around a reply. Talker's engine core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from omni_core.errors import ConfigError

EMBEDDINGS = "thinker.model.embed_tokens.weight"
"""The thinker's table, of which the talker reads the rows of its marks."""


class Marks(nn.Module):
    """The rows of the marks [n, W], in memory that stays while new weights are loaded.

    vLLM takes the tensors of a model's modules away while it reads weights again and lays the old ones back where no parameter
    was loaded; a talker leaves this module out of its `modules()`.
    """

    rows: Tensor

    def __init__(self, count: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros((count, width), dtype=dtype), persistent=False)


def take_marks(weights: Iterable[tuple[str, Tensor]], ids: Sequence[int], width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors, of the thinker's embeddings only the rows of `ids`.

    Args:
        weights: Tensors by name.
        ids: Text ids.
        width: Of the thinker's rows.

    Raises:
        ConfigError: The embeddings have another width, or fewer rows.
    """
    for name, tensor in weights:
        if name == EMBEDDINGS:
            if tensor.shape[1] != width or tensor.shape[0] <= max(ids):
                raise ConfigError(
                    f"the tensor {name} has the shape {list(tensor.shape)}, but the talker reads its row {max(ids)} "
                    f"with {width} values",
                    hint="use weights and config.json of one and the same checkpoint",
                )
            tensor = tensor[torch.tensor(list(ids), device=tensor.device)]
        yield name, tensor
