"""From noise to a mel spectrogram: the flow that the decoder's transformer describes, followed by Runge and Kutta's 3/8 rule.

As transformers' own `sample`, but the noise it starts from is given, and no more than one point of the path is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

POINTS = 10
"""Points in time, the two ends among them."""
GUIDANCE = 0.5
"""How far the codes and the voice are followed beyond what they say, compared with neither."""
SWAY = -1.0
"""Moves the points towards the beginning."""


def denoise(transformer: Any, codes: Tensor, conditioning: Tensor, reference_mel: Tensor, noise: Tensor) -> Tensor:
    """Return the mel spectrogram [1, mels, frames] of codes.

    Args:
        transformer: transformers' `Qwen2_5OmniToken2WavDiTModel`.
        codes: int [1, n].
        conditioning: What is known of the speaker [1, E].
        reference_mel: A recording of the speaker [1, T, mels].
        noise: Where to start [1, frames, mels]; its frames are those of the result.
    """
    speaker = conditioning.unsqueeze(1).repeat(1, noise.shape[1], 1)

    def slope(time: Tensor, state: Tensor) -> Tensor:
        both = transformer(
            hidden_states=state,
            quantized_code=codes,
            speaker_embedding=speaker,
            condition_vector=reference_mel,
            time_step=time,
            apply_cfg=True,
        )
        guided, free = both.chunk(2, dim=0)
        return guided + (guided - free) * GUIDANCE

    times = torch.linspace(0, 1, POINTS, device=noise.device, dtype=noise.dtype)
    times = times + SWAY * (torch.cos(torch.pi / 2 * times) - 1 + times)
    state = noise
    for start, end in pairwise(times):
        state = state + _step(slope, start, end, state)
    return state.permute(0, 2, 1)


def _step(slope: Callable[[Tensor, Tensor], Tensor], start: Tensor, end: Tensor, state: Tensor) -> Tensor:
    length = end - start
    first = slope(start, state)
    second = slope(start + length / 3, state + length * first / 3)
    third = slope(start + length * 2 / 3, state + length * (second - first / 3))
    last = slope(end, state + length * (first - second + third))
    return (first + 3 * (second + third) + last) * length / 8
