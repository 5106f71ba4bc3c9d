"""What the talkers have in common: rows by slot and position around a backbone of vLLM's layers. Engine core.

A row is a text id and the codes of a frame. Rows follow from `RowHistory`, so any position can be computed again at any time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig

from omni_core.modelkit.history import RowHistory
from omni_core.payload import Payload


class MossTalker(nn.Module):
    """A backbone that reads rows. Subclasses set `model`, call `remember`, and say how frames are embedded and predicted."""

    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads a plain dict)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    model: Any
    history: RowHistory

    def remember(self, vllm_config: VllmConfig, num_codes: int, text: int) -> None:
        """Make room for the rows of all requests.

        Args:
            vllm_config: How many requests, and how long.
            num_codes: Codes of a row.
            text: Text id of the rows whose text is not given.
        """
        self.slots = vllm_config.scheduler_config.max_num_seqs
        positions = vllm_config.model_config.max_model_len + 1
        self.history = RowHistory(slots=self.slots, positions=positions, num_codes=num_codes, text=text)

    @abstractmethod
    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [B, Q] as [B, H]."""

    def in_place(self) -> Iterable[nn.Module]:
        """Return the parts outside vLLM's layers, whose weights are overwritten where they are when new ones come."""
        return ()

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of text ids; rows proper come from `omni_embed`."""
        embeds: Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        """Return the normed hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request."""
        self.history.begin(slot, inputs["text_ids"], inputs["codes"])

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        return self.omni_condition(slots, positions) + self.embed_codes(self.history.codes[slots, positions])

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H]."""
        return self.embed_input_ids(self.history.text_ids[slots, positions])

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them."""
        self.history.record(slots, positions, codes)

    def omni_end(self, slot: int) -> None:
        """Forget nothing: the next `omni_begin` of the slot overwrites whatever can be read."""

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose weights vLLM takes away while new ones come; what is `in_place` gets its own there."""
        in_place = {module for part in self.in_place() for module in part.modules()}
        return (module for module in super().modules(*args, **kwargs) if module not in in_place)
