"""How a predictor of frames chooses: greedy and sampled rows in one batch, each with its own settings and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_core.capabilities import MtpSampling

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class CodeSampling:
    """The settings of a batch, as columns [B, 1] on the device and as facts on the host."""

    greedy: Tensor
    """Rows that take the most likely code."""
    temperature: Tensor
    top_k: Tensor
    """The size of the codebook where every code is kept."""
    top_p: Tensor
    penalty: Tensor | None
    """Factor against codes that were there before; None where every row has 1."""
    max_k: int
    """The largest `top_k` of the sampled rows."""
    any_greedy: bool
    all_greedy: bool
    any_limit: bool
    """Whether a sampled row has a top-k or top-p."""

    @classmethod
    def of(cls, rows: Sequence[MtpSampling], vocab_size: int, device: torch.device) -> CodeSampling:
        """Return the settings of a batch.

        Args:
            rows: The settings of each row.
            vocab_size: Size of a codebook.
            device: Where the columns go.
        """
        sampled = [row for row in rows if not row.greedy]
        limits = {row: row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in rows}

        def column(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        return cls(
            greedy=column([row.greedy for row in rows], torch.bool),
            temperature=column([1.0 if row.greedy else row.temperature for row in rows], torch.float32),
            top_k=column([limits[row] for row in rows], torch.int64),
            top_p=column([row.top_p for row in rows], torch.float32),
            penalty=column([row.repetition_penalty for row in rows], torch.float32)
            if any(row.repetition_penalty != 1 for row in rows)
            else None,
            max_k=max((limits[row] for row in sampled), default=0),
            any_greedy=len(sampled) < len(rows),
            all_greedy=not sampled,
            any_limit=any(limits[row] < vocab_size or row.top_p < 1 for row in sampled),
        )

    def choose(self, logits: Tensor, uniforms: Tensor | None, seen: Tensor | None = None) -> Tensor:
        """Return a code for each row.

        Args:
            logits: [B, V].
            uniforms: Numbers in [0, 1) [B, V], the only source of chance; None draws them here.
            seen: bool [B, V], the codes that the repetition penalty lowers; None for models without one.

        Returns:
            int64 [B].
        """
        if self.penalty is not None and seen is not None:
            lowered = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
            logits = torch.where(seen, lowered, logits)
        if self.all_greedy:
            return _likeliest(logits)
        drawn = self._draw(logits, uniforms)
        return torch.where(self.greedy[:, 0], _likeliest(logits), drawn) if self.any_greedy else drawn

    def _draw(self, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        if uniforms is None:
            uniforms = torch.rand(logits.shape, device=logits.device)
        if not self.any_limit:
            return _race(torch.softmax(logits.float() / self.temperature, -1), uniforms)
        best, codes = logits.topk(self.max_k, dim=-1)  # a temperature changes no order
        beyond_k = torch.arange(self.max_k, device=logits.device) >= self.top_k
        odds = torch.softmax((best.float() / self.temperature).masked_fill(beyond_k, -torch.inf), -1)
        # A code stays while those before it have not reached top-p: the first one always does.
        odds = odds.masked_fill(odds.cumsum(-1) - odds >= self.top_p, 0.0)
        return codes.gather(-1, _race(odds, uniforms.gather(-1, codes))[:, None])[:, 0]


class LastSampling:
    """Settings of batches; the last ones are kept, since a batch mostly stays the same for many steps.

    Args:
        vocab_size: Size of a codebook.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._last: tuple[tuple[MtpSampling, ...], int, CodeSampling] | None = None

    def of(self, rows: Sequence[MtpSampling], device: torch.device, times: int = 1) -> CodeSampling:
        """Return the settings of a batch where each row is there `times` times, one after the other."""
        key = tuple(rows)
        if self._last is None or self._last[:2] != (key, times):
            repeated = [row for row in key for _ in range(times)]
            self._last = key, times, CodeSampling.of(repeated, self._vocab_size, device)
        return self._last[2]


def _likeliest(logits: Tensor) -> Tensor:
    """Return the first index of each row's largest value; on CPUs `argmax` takes three times as long for the same."""
    return logits.max(-1).indices


def _race(odds: Tensor, uniforms: Tensor) -> Tensor:
    """Return an index for each row, drawn with these odds [B, n], which need not add up to 1.

    The smallest of exponential waiting times with these rates falls on an index with its odds. Numbers near 1 give the short
    times: a 0, which is as likely as any other float, then loses instead of always winning.
    """
    waits = (-uniforms.float().clamp_min(_TINY).log()).clamp_min(_TINY)
    return (odds / waits).argmax(-1)
