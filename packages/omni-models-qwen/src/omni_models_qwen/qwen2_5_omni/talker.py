"""The talker of Qwen2.5-Omni on vLLM's layers; runs in the engine core of stage 1.

Each step reads one row, the code made last beside the thinker's row of the next token of the reply, and samples a code by
vLLM's own sampler. A row follows from the request's rows and its sampled ids, so any position can be computed again at any
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities
from omni_core.modelkit.backbone_weights import GATED_MLP, BackboneWeights, decoder_names
from omni_core.modelkit.history import as_tensor
from omni_core.modelkit.paged_rows import PagedRows
from omni_core.payload import Payload
from omni_models_qwen.qwen2_5_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen2_5_omni.talker_input import OPENING
from omni_models_qwen.qwen2_5_omni.talker_layers import TalkerBackbone
from omni_models_qwen.qwen2_5_omni.voices import Voices
from omni_models_qwen.talking.marks import EMBEDDINGS, Marks, take_marks

_END, _PAD, _VOICES = range(3)
"""Rows of the marks; those of the voices follow one another."""
_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}" for name in GATED_MLP),
)
_OTHERS = ("thinker.", "token2wav.")
"""Tensors that other stages read."""


class Qwen2_5OmniTalker(nn.Module, SupportsMRoPE):
    """Make codes from the rows of the thinker."""

    capabilities = ModelCapabilities(computes_inputs=True, gated_inputs=True, row_width="embedding_size")

    prompts: Tensor
    received: Tensor
    voices: Tensor
    suppressed: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        facts = Checkpoint.read(model_config.model, vllm_config.additional_config)
        # The first position that has a code beside the thinker's row, counted from the opening.
        self._first_code = 0 if facts.codec_opening else OPENING
        self.config = config = model_config.hf_text_config
        self.model = TalkerBackbone(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        name = maybe_prefix(prefix, "thinker_to_talker_proj")
        self.thinker_to_talker_proj = ReplicatedLinear(facts.thinker_width, config.hidden_size, quant_config=None, prefix=name)
        name = maybe_prefix(prefix, "codec_head")
        self.codec_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=name, quant_config=None)
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        voices = Voices.read(model_config.model).marks
        self._mark_ids = (facts.text_end, facts.text_pad, *voices)
        self._voice_rows = {mark: _VOICES + number for number, mark in enumerate(voices)}
        suppressed = torch.arange(config.vocab_size) >= facts.num_codes  # the decoder has no rows for them
        suppressed[list(facts.codec.ends)] = False
        self._keep("suppressed", suppressed)
        slots, positions = vllm_config.scheduler_config.max_num_seqs, model_config.max_model_len + 1
        self.rows = PagedRows(slots, positions, facts.thinker_width, model_config.dtype)
        self.mark_rows = Marks(len(self._mark_ids), facts.thinker_width, model_config.dtype)
        for state in ("prompts", "received", "voices"):
            self._keep(state, torch.zeros(slots, dtype=torch.int64))
        self._rope: list[tuple[Tensor, int]] = [(torch.empty((3, 0), dtype=torch.int64), 0)] * slots

    @property
    def marks(self) -> Tensor:
        """The rows of the marks [n, W]."""
        return self.mark_rows.rows

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose tensors vLLM takes away while new weights come; the marks get theirs in place."""
        kept = getattr(self, "mark_rows", None)
        return (module for module in super().modules(*args, **kwargs) if module is not kept)

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take what the input processor made of a request: the mark of its voice, and 3-D positions where there are some."""
        self.rows.end(slot)
        self.prompts[slot] = prompt_len
        self.received[slot] = 0
        self.voices[slot] = self._voice_rows[int(inputs["mark"])]
        positions = inputs.get("positions")
        line = torch.arange(prompt_len).expand(3, prompt_len)
        self._rope[slot] = (line, 0) if positions is None else (as_tensor(positions), int(inputs["delta"]))

    def omni_rope(self, slot: int) -> tuple[Tensor, int]:
        """Return the positions of a request's prompt, int64 [3, P], and what later ones are moved by."""
        return self._rope[slot]

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[Tensor, int]:
        """Return the positions of a prompt of text: vLLM asks for those of its warm-up requests."""
        count = len(input_tokens)
        return torch.arange(count).expand(3, count), 0

    def omni_ingest(self, slot: int, start: int, rows: Tensor) -> None:
        """Keep rows of the thinker [n, W] for the positions from `start`."""
        self.rows.write(slot, start, rows)
        self.received[slot] = start + len(rows)

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        behind = (positions - self.received[slots])[:, None]
        theirs = torch.where(behind < 0, self.rows.read(slots, positions), self.marks[_PAD])
        theirs = torch.where(behind == 0, self.marks[_END], theirs)
        opening = (positions - self.prompts[slots] + OPENING)[:, None]
        theirs = torch.where(opening == 0, self.marks[self.voices[slots]], theirs)
        codes = torch.where(opening >= self._first_code, self.model.embed_input_ids(token_ids), 0)
        rows: Tensor = self.thinker_to_talker_proj(theirs + codes)[0]
        return rows

    def omni_end(self, slot: int) -> None:
        """Free the rows of a request."""
        self.rows.end(slot)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the rows [T, H] of codes alone; rows proper come from `omni_embed`."""
        rows: Tensor = self.thinker_to_talker_proj(self.model.embed_input_ids(input_ids))[0]
        return rows

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        """Return the normed hidden states [T, H]."""
        if inputs_embeds is None and input_ids is not None:
            inputs_embeds = self.embed_input_ids(input_ids)
        return self.model(None, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [B, V] where only codes and the ends of speech can win."""
        logits: Tensor | None = self.logits_processor(self.codec_head, hidden_states)
        return None if logits is None else logits.masked_fill_(self.suppressed, -torch.inf)

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Return whether a file with nothing but such tensors need not be read: most of the checkpoint is the thinker's."""
        return not name.startswith("talker.") and name != EMBEDDINGS

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        layers = self.config.num_hidden_layers
        names = {
            "talker.codec_head.weight": "codec_head.weight",
            "talker.model.embed_tokens.weight": "model.embed_tokens.weight",
            **{f"talker.{part}": part for part in ("thinker_to_talker_proj.weight", "thinker_to_talker_proj.bias")},
            **decoder_names("talker.model", "model", layers, _LAYER),
        }
        biases = [f"layers.{layer}.self_attn.{name}_proj.bias" for layer in range(layers) for name in "qkv"]
        names |= {f"talker.model.{bias}": f"model.{bias}" for bias in biases}
        loader = BackboneWeights(self, names, {EMBEDDINGS: self.marks}, _OTHERS)
        return loader.load(take_marks(weights, self._mark_ids, self.marks.shape[1]))
