"""What talkers that make frames have in common, whatever their model: rows around one of vLLM's backbones. Engine core.

A row is what the backbone reads at a position; `RowHistory` keeps what rows are made of, so that each can be computed again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from omni_core.capabilities import MtpSampling, read_capabilities
from omni_core.modelkit.history import RowHistory

_NOT_TOLD = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class FrameStep:
    """What a talker is asked for: the frames of a batch, one row for each request."""

    token_ids: Tensor
    """What was sampled [B]. The frame of a token that ends a request is never used."""
    embeds: Tensor
    """Their embeddings [B, H]."""
    hidden: Tensor
    """The hidden states they were sampled from [B, H]."""
    conditioning: Tensor
    """What stands beside the codes of the next rows [B, H]."""
    sampling: Sequence[MtpSampling]
    """How each row's codes are chosen."""
    uniforms: Tensor | None
    """Random numbers [B, steps, vocabulary]; None where nobody draws them beforehand."""
    slots: Tensor
    """The requests [B]; empty where the model does not declare `accepts_slots`."""
    positions: Tensor
    """The positions of the next rows [B]; empty where the model does not declare `accepts_positions`."""


class FrameTalker(nn.Module):
    """Make frames of codes from rows.

    A subclass sets `model`, vLLM's backbone, and `history`. It says how frames are made, how they are read, and has the methods
    of `ArModel` that are not here: `compute_logits`, `omni_begin`, `omni_embed`, `omni_condition` and `omni_end`.
    """

    in_place: ClassVar[tuple[str, ...]] = ()
    """Names of modules outside vLLM's layers, whose weights are overwritten where they are when new ones come."""

    model: Any
    history: RowHistory

    @abstractmethod
    def make_frames(self, step: FrameStep) -> Tensor:
        """Return the frames [B, Q], whole numbers."""

    @abstractmethod
    def next_rows(self, step: FrameStep, codes: Tensor) -> Tensor:
        """Return the rows [B, H] that read these frames: what `omni_embed` returns once they are recorded."""

    def mtp(
        self,
        token_ids: Tensor,
        embeds: Tensor,
        hidden: Tensor,
        conditioning: Tensor,
        *,
        req_infos: Sequence[MtpSampling] | None = None,
        uniforms: Tensor | None = None,
        slots: Tensor = _NOT_TOLD,
        positions: Tensor = _NOT_TOLD,
    ) -> tuple[Tensor, Tensor]:
        """Return the next rows [B, H] and the frames [B, Q]; see `FrameStep`.

        Args:
            token_ids: Sampled ids.
            embeds: Their embeddings.
            hidden: The hidden states they were sampled from.
            conditioning: What stands beside the codes of the next rows.
            req_infos: How each row's codes are chosen; None means the model's own settings.
            uniforms: Random numbers.
            slots: The requests.
            positions: The positions of the next rows.
        """
        sampling = req_infos if req_infos is not None else [_own_sampling(type(self))] * len(token_ids)
        step = FrameStep(token_ids, embeds, hidden, conditioning, sampling, uniforms, slots, positions)
        codes = self.make_frames(step)
        return self.next_rows(step, codes), codes

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of ids that are sampled; rows proper come from `omni_embed`."""
        embeds: Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        """Return the normed hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them."""
        self.history.record(slots, positions, codes)

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose weights vLLM takes away while new ones come; those of `in_place` get theirs in place."""
        parts = [getattr(self, name) for name in self.in_place if hasattr(self, name)]
        in_place = {module for part in parts for module in part.modules()}
        return (module for module in super().modules(*args, **kwargs) if module not in in_place)


def _own_sampling(model_class: type) -> MtpSampling:
    declared = read_capabilities(model_class).mtp
    assert declared is not None
    return declared.sampling
