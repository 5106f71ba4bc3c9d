"""The methods of a model that computes its inputs. Called in the engine core; docs/architecture.md says when.

Slots are stable numbers in `[0, max_num_seqs)`. Every method takes and returns tensors on the model's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from omni_core.capabilities import MtpSampling
from omni_core.payload import Payload


class ArModel(Protocol):
    """A model with `ModelCapabilities.computes_inputs`.

    `omni_ingest` belongs to gated inputs, `omni_constrain` to constrained sampling, the last three to `mtp`.
    """

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take a new request's inputs; whatever the slot held before is void."""

    def omni_end(self, slot: int) -> None:
        """Forget a finished request. Not called when a request is preempted."""

    def omni_ingest(self, slot: int, start: int, rows: torch.Tensor) -> None:
        """Take rows [n, W] for the positions from `start`."""

    def omni_embed(self, slots: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return input embeddings [T, H]: a pure function of each request's inputs and recorded codes."""

    def omni_constrain(
        self, slots: torch.Tensor, positions: torch.Tensor, logits: torch.Tensor, sampling: Sequence[MtpSampling]
    ) -> None:
        """Change, in place, the logits [B, V] of the tokens that are about to be sampled for these positions.

        Rows whose prompt is not complete may be among them; what they sample is dropped.
        """

    def omni_rope(self, slot: int) -> tuple[torch.Tensor, int]:
        """Return the rotary positions of a request's prompt, int64 [3, P] on the host, and the delta of those behind it.

        Asked after `omni_begin`, of models that have this method and whose configuration has rotary sections (vLLM's
        `uses_mrope`). A position p behind the prompt is p + delta in all three dimensions. The class also needs vLLM's own
        `SupportsMRoPE`.
        """

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [B, H] of sampled tokens, for `mtp`."""

    def omni_condition(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what is added to the codes at these positions, [B, H].

        A gated model may be asked before the position's row is there; what it returns then is not used as an input.
        """

    def mtp(
        self,
        token_ids: torch.Tensor,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        conditioning: torch.Tensor,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input embeddings of the next position [B, H] and the frames [B, Q].

        The embeddings must equal what `omni_embed` returns for that position once the frame is recorded.
        """

    def omni_record(self, slots: torch.Tensor, positions: torch.Tensor, codes: torch.Tensor) -> None:
        """Keep frames [B, Q] as history."""
