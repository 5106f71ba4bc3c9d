"""The outputs of one request, joined into its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_core.chat import join_replies
from omni_core.pipeline import OutputType
from omni_core.request import OmniOutput, OmniResult


def join_results(request_id: str, outputs: Sequence[OmniOutput]) -> OmniResult:
    """Return a finished request's outputs as one: audio and tensors along dimension 0, text and token ids in order."""
    audio = [output for output in outputs if output.type == OutputType.AUDIO]
    named: dict[str, list[Any]] = {}
    for output in outputs:
        for name, value in output.tensors.items():
            if name != OutputType.AUDIO:
                named.setdefault(name, []).append(value)
    token_ids = named.pop("token_ids", [])
    last = outputs[-1]
    return OmniResult(
        request_id,
        audio=np.concatenate([output.data for output in audio]) if audio else None,
        sample_rate=audio[-1].sample_rate if audio else None,
        text="".join(output.data for output in outputs if output.type == OutputType.TEXT),
        token_ids=tuple(int(token) for part in token_ids for token in np.asarray(part).reshape(-1)),
        tensors={name: _join(parts) for name, parts in named.items()},
        finish_reason=last.finish_reason,
        metrics=last.metrics,
        reply=join_replies(output.reply for output in outputs),
    )


def _join(parts: list[Any]) -> Any:
    if len(parts) == 1 or not all(isinstance(part, np.ndarray) and part.ndim for part in parts):
        return parts[-1]
    return np.concatenate(parts)
