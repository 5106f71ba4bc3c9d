"""Where a request stands in the delay pattern, for each position: what it may sample next, and which codes the next row has.

    outside      any text; audio_start begins a sound
    in a sound   a slot for one more frame, or the first delay slot, which begins the end
    ending       the other delay slots, as many as complete the last frame, then audio_end; nobody chooses

Row r of a sound has codes of the codebooks 0 to r. Behind the first delay slot one codebook after the other falls silent.
Engine core.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from omni_models_moss.delay.checkpoint import Checkpoint

_NOT_ENDING = -1


class DelayClock(nn.Module):
    """Counters by slot and position.

    Args:
        facts: The special ids and the number of codebooks.
        vocab_size: Number of text ids.
        slots: Number of slots.
        positions: Positions of a slot.
    """

    rows: Tensor
    ending: Tensor
    begins: Tensor
    allowed: Tensor
    books: Tensor

    def __init__(self, facts: Checkpoint, vocab_size: int, slots: int, positions: int) -> None:
        super().__init__()
        self._facts = facts
        # Rows of the sound under way up to and with this position, audio_start among them; 0 outside a sound.
        self._keep("rows", torch.zeros((slots, positions), dtype=torch.int32))
        # Delay slots up to and with this position, _NOT_ENDING before the first one.
        self._keep("ending", torch.full((slots, positions), _NOT_ENDING, dtype=torch.int32))
        self._keep("begins", torch.zeros(slots, dtype=torch.int64))
        self._keep("allowed", _allowed(facts, vocab_size))
        self._keep("books", torch.arange(facts.num_codes, dtype=torch.int32))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def begin(self, slot: int, prompt_len: int, begun: int) -> None:
        """Start a request whose prompt ends outside a sound, or in one with `begun` rows behind audio_start."""
        self.begins[slot] = prompt_len
        self.rows[slot, prompt_len - 1] = begun + 1 if begun else 0
        self.ending[slot, prompt_len - 1] = _NOT_ENDING

    def constrain(self, slots: Tensor, positions: Tensor, logits: Tensor) -> None:
        """Leave, in place, the text ids [B, V] that may stand at these positions."""
        n, step = self._facts.num_codes, positions - self.begins[slots]
        rows, ending = self.rows[slots, positions - 1], self.ending[slots, positions - 1]
        outside = torch.where(step <= n, _EARLY, _OUTSIDE)
        inside = torch.where(step == 0, _BEGUN, _INSIDE)
        case = torch.where(rows > 0, inside, outside)
        case = torch.where(ending > 0, torch.where(ending < n, _DELAY, _END), case)
        logits.masked_fill_(~self.allowed[case], -torch.inf)

    def spoken(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return which codebooks have a code in the rows at these positions, bool [B, books]."""
        rows, ending = self.rows[slots, positions - 1, None], self.ending[slots, positions - 1, None]
        return (self.books < rows) & (self.books >= ending)

    def tick(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Count the text ids [B] that stand at these positions."""
        facts = self._facts
        rows, ending = self.rows[slots, positions - 1], self.ending[slots, positions - 1]
        is_delay = token_ids == facts.delay_slot
        goes_on = is_delay | (token_ids == facts.gen_slot) | (token_ids == facts.audio_start)
        rows = torch.where(goes_on, rows + 1, rows)
        self.rows[slots, positions] = torch.where(token_ids == facts.audio_end, 0, rows)
        begun = torch.where((ending == _NOT_ENDING) & is_delay, 0, ending)
        ending = torch.where(begun >= 0, begun + 1, begun)
        self.ending[slots, positions] = torch.where(ending > facts.num_codes, _NOT_ENDING, ending)


_EARLY, _OUTSIDE, _BEGUN, _INSIDE, _DELAY, _END = range(6)
"""Rows of the table of allowed ids."""


def _allowed(facts: Checkpoint, vocab_size: int) -> Tensor:
    """Return which text ids each case allows, bool [6, V]."""
    table = torch.zeros((6, vocab_size), dtype=torch.bool)
    table[[_EARLY, _OUTSIDE]] = True
    table[:2, [facts.pad, facts.gen_slot, facts.delay_slot, facts.audio_end]] = False
    table[_EARLY, facts.im_end] = False  # the reference lets no answer end in its first steps
    table[[_BEGUN, _INSIDE], facts.gen_slot] = True
    table[_INSIDE, facts.delay_slot] = True
    table[_DELAY, facts.delay_slot] = True
    table[_END, facts.audio_end] = True
    return table
