"""What talkers that read the thinker's rows have in common: the rows as they arrive, the marks around a reply, positions.

Runs in the engine core of the talker's stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE

from omni_core.modelkit.history import as_tensor
from omni_core.modelkit.paged_rows import PagedRows
from omni_core.payload import Payload
from omni_models_qwen.talking.marks import EMBEDDINGS, Marks, take_marks


class ThinkerReader(nn.Module, SupportsMRoPE):
    """Keep what arrives of the thinker for each slot.

    A subclass calls `remember`, `begin_rows` in its `omni_begin`, and loads its weights `with_marks`.
    """

    received: Tensor
    """How many rows of each slot have arrived, from position 0 on."""

    def remember(self, vllm_config: VllmConfig, width: int, mark_ids: Sequence[int]) -> None:
        """Make room for the rows of all requests, and for those of the marks.

        Args:
            vllm_config: How many requests, and how long.
            width: Of the thinker's rows.
            mark_ids: Text ids whose embeddings the talker reads by itself.
        """
        model_config = vllm_config.model_config
        slots, positions = vllm_config.scheduler_config.max_num_seqs, model_config.max_model_len + 1
        self.slots, self.positions = slots, positions
        self.rows = PagedRows(slots, positions, width, model_config.dtype)
        self.mark_rows = Marks(len(mark_ids), width, model_config.dtype)
        self._mark_ids = tuple(mark_ids)
        self._rope: list[tuple[Tensor, int]] = [(_line(0), 0)] * slots
        self.register_buffer("received", torch.zeros(slots, dtype=torch.int64), persistent=False)

    @property
    def marks(self) -> Tensor:
        """The rows of the marks [n, W], in the order of their ids."""
        return self.mark_rows.rows

    def begin_rows(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Forget a slot's rows and take the positions of a new request, which count up where `inputs` has none."""
        self.rows.end(slot)
        self.received[slot] = 0
        positions = inputs.get("positions")
        self._rope[slot] = (_line(prompt_len), 0) if positions is None else (as_tensor(positions), int(inputs["delta"]))

    def omni_ingest(self, slot: int, start: int, rows: Tensor) -> None:
        """Keep rows of the thinker [n, W] for the positions from `start`."""
        self.rows.write(slot, start, rows)
        self.received[slot] = start + len(rows)

    def omni_end(self, slot: int) -> None:
        """Free the rows of a request."""
        self.rows.end(slot)

    def theirs(self, slots: Tensor, positions: Tensor, *, end: int, pad: int) -> Tensor:
        """Return the thinker's rows [T, W]; behind the last one the mark `end`, and then `pad` for ever.

        A position is computed only when its row is there, or when no more rows come.
        """
        behind = (positions - self.received[slots])[:, None]
        marks = torch.where(behind == 0, self.marks[end], self.marks[pad])
        return torch.where(behind < 0, self.rows.read(slots, positions), marks)

    def omni_rope(self, slot: int) -> tuple[Tensor, int]:
        """Return the positions of a request's prompt, int64 [3, P], and what later ones are moved by."""
        return self._rope[slot]

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[Tensor, int]:
        """Return the positions of a prompt of text: vLLM asks for those of its warm-up requests."""
        return _line(len(input_tokens)), 0

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Return whether files of such tensors alone need not be read; most of the checkpoint is the thinker's."""
        return not name.startswith("talker.") and name != EMBEDDINGS

    def with_marks(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the checkpoint's tensors, of the thinker's embeddings the rows of the marks alone (`marks.take_marks`)."""
        return take_marks(weights, self._mark_ids, self.marks.shape[1])

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose tensors vLLM takes away while new weights come; the marks get theirs in place."""
        kept = getattr(self, "mark_rows", None)
        return (module for module in super().modules(*args, **kwargs) if module is not kept)


def _line(count: int) -> Tensor:
    """Return positions that count up, int64 [3, count]."""
    return torch.arange(count).expand(3, count)
