"""What the talker remembers of its requests: for each slot and position, the text and the codes of the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omni_core.payload import Payload
from omni_models_qwen.qwen3_tts.prompt import NO_CODE


class RowHistory(nn.Module):
    """Ids by (slot, position), on the device. Nothing here depends on the order in which positions are computed."""

    text_ids: Tensor
    codes: Tensor
    speaker_row: Tensor
    speaker: Tensor

    def __init__(self, slots: int, positions: int, num_codes: int, hidden: int, text_pad: int) -> None:
        super().__init__()
        self._pad = text_pad
        self._keep("text_ids", torch.full((slots, positions), text_pad, dtype=torch.int32))
        self._keep("codes", torch.full((slots, positions, num_codes), NO_CODE, dtype=torch.int32))
        self._keep("speaker_row", torch.full((slots,), -1, dtype=torch.int64))
        self._keep("speaker", torch.zeros((slots, hidden)))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def begin(self, slot: int, inputs: Payload) -> None:
        """Write the plan of a request's rows; see `prompt.RowPlan`."""
        positions = self.text_ids.shape[1]
        text = _tensor(inputs["text_ids"])[:positions]  # text past the last position can never be reached
        codes = _tensor(inputs["codes"])[:positions]
        self.text_ids[slot].fill_(self._pad)
        self.text_ids[slot, : len(text)].copy_(text)
        self.codes[slot, : len(codes)].copy_(codes)
        self.speaker_row[slot] = int(inputs["speaker_row"])
        if (speaker := inputs.get("speaker")) is not None:
            self.speaker[slot].copy_(_tensor(speaker))

    def record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Write frames [B, Q] at the positions that read them."""
        self.codes[slots, positions] = codes.to(self.codes.dtype)


def _tensor(value: Any) -> Tensor:
    """Return a copy as a tensor: arrays that crossed a process are read-only, which torch warns about."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
