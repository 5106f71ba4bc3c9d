"""The second stage: a frame of codes becomes 80 ms of audio."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omni_core.modelkit.codec_stage import CodecStage, payload_rows, stage_device
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_duplex.personaplex.codec import CodecDecoder, build_codec
from omni_duplex.personaplex.network import as_array
from omni_duplex.personaplex.shape import CODEC, CODES, FRAME_SAMPLES, SAMPLE_RATE
from omni_duplex.personaplex.slots import Rows, SlotTable
from omni_duplex.personaplex.stage import read_shape, slot_count


class PersonaPlexCode2Wav(CodecStage):
    """Decode frames as they come, for every session that has some; `codes` int64 [n, 8] give `audio` float32 [1920 n, 1].

    Args:
        decoder: The codec's decoder.
        card: Entries of a codebook.
        slots: The sessions.
        device: Where it computes.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, decoder: CodecDecoder, card: int, slots: SlotTable, device: torch.device) -> None:
        self.decoder = decoder
        self._card = card
        self._slots = slots
        self._device = device

    @classmethod
    def load(cls, stage: ResolvedStage) -> PersonaPlexCode2Wav:
        """Load the codec.

        Raises:
            ConfigError: The file is missing or damaged, or belongs to another model.
        """
        shape, slots, device = read_shape(stage), slot_count(stage), torch.device(stage_device(stage))
        model = build_codec(Path(stage.model) / CODEC, shape, device)
        return cls(CodecDecoder(model, slots, device), shape.card, SlotTable(slots), device)

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> int:
        """Return a session's slot.

        Raises:
            OverloadedError: None is free.
        """
        slot = self._slots.take()
        self.decoder.begin(slot)
        return slot

    def group(self, chunk: LightChunk) -> Hashable:
        """Return the number of frames: equal ones are decoded together."""
        return len(payload_rows(chunk.payload, "codes"))

    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's audio.

        Raises:
            RequestError: Codes are not [n, 8] whole numbers inside the codebooks. No session has changed then.
        """
        given = [self.checked_codes(chunk, "codes", books=CODES, size=self._card) for chunk in chunks]
        count = len(given[0])
        if not count:
            return [{} for _ in chunks]
        codes = np.zeros((self._slots.count, count, CODES), np.int64)
        for chunk, found in zip(chunks, given, strict=True):
            codes[chunk.state] = found
        rows = Rows([chunk.state for chunk in chunks], self._slots.count, self._device)
        audio = as_array(self._decode(torch.from_numpy(codes).to(self._device), rows))
        return [{"audio": audio[chunk.state].reshape(count * FRAME_SAMPLES, 1).copy()} for chunk in chunks]

    def _decode(self, codes: Tensor, rows: Rows) -> Tensor:
        return torch.stack([self.decoder.decode(frame, rows) for frame in codes.unbind(1)], dim=1)

    def end(self, state: int) -> None:
        """Give a session's slot back."""
        self._slots.give_back(state)
