"""What the talker remembers of its requests: the rows, and the voice that one of them speaks with."""

from __future__ import annotations

import torch
from torch import Tensor

from omni_core.modelkit.history import RowHistory, as_tensor
from omni_core.payload import Payload


class VoicedHistory(RowHistory):
    """`RowHistory`, and for each slot a speaker embedding and the row it is added to."""

    speaker_row: Tensor
    speaker: Tensor

    def __init__(self, slots: int, positions: int, num_codes: int, hidden: int, text_pad: int) -> None:
        super().__init__(slots, positions, num_codes, text_pad)
        self.keep("speaker_row", torch.full((slots,), -1, dtype=torch.int64))
        self.keep("speaker", torch.zeros((slots, hidden)))

    def take(self, slot: int, inputs: Payload) -> None:
        """Write the plan of a request's rows; see `prompt.RowPlan`."""
        self.begin(slot, inputs["text_ids"], inputs["codes"])
        self.speaker_row[slot] = int(inputs["speaker_row"])
        if (speaker := inputs.get("speaker")) is not None:
            self.speaker[slot].copy_(as_tensor(speaker))
