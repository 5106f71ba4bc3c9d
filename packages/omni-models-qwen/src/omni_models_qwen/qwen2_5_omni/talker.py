"""The talker of Qwen2.5-Omni on vLLM's layers; runs in the engine core of stage 1.

Each step reads one row, the code made last beside the thinker's row of the next token of the reply, and samples a code by
vLLM's own sampler. A row follows from the request's rows and its sampled ids, so any position can be computed again at any
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities
from omni_core.modelkit.backbone_weights import GATED_MLP, BackboneWeights, decoder_names
from omni_core.payload import Payload
from omni_models_qwen.qwen2_5_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen2_5_omni.talker_input import OPENING
from omni_models_qwen.qwen2_5_omni.talker_layers import TalkerBackbone
from omni_models_qwen.qwen2_5_omni.voices import Voices
from omni_models_qwen.talking.marks import EMBEDDINGS
from omni_models_qwen.talking.thinker_reader import ThinkerReader

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


class Qwen2_5OmniTalker(ThinkerReader):
    """Make codes from the rows of the thinker."""

    capabilities = ModelCapabilities(computes_inputs=True, gated_inputs=True, row_width="embedding_size")

    prompts: Tensor
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
        self.remember(vllm_config, facts.thinker_width, (facts.text_end, facts.text_pad, *voices))
        self._voice_rows = {mark: _VOICES + number for number, mark in enumerate(voices)}
        suppressed = torch.arange(config.vocab_size) >= facts.num_codes  # the decoder has no rows for them
        suppressed[list(facts.codec.ends)] = False
        self.register_buffer("suppressed", suppressed, persistent=False)
        for state in ("prompts", "voices"):
            self.register_buffer(state, torch.zeros(self.slots, dtype=torch.int64), persistent=False)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take what the input processor made of a request: the mark of its voice, and 3-D positions where there are some."""
        self.begin_rows(slot, inputs, prompt_len)
        self.prompts[slot] = prompt_len
        self.voices[slot] = self._voice_rows[int(inputs["mark"])]

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        theirs = self.theirs(slots, positions, end=_END, pad=_PAD)
        opening = (positions - self.prompts[slots] + OPENING)[:, None]
        theirs = torch.where(opening == 0, self.marks[self.voices[slots]], theirs)
        codes = torch.where(opening >= self._first_code, self.model.embed_input_ids(token_ids), 0)
        rows: Tensor = self.thinker_to_talker_proj(theirs + codes)[0]
        return rows

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
        return loader.load(self.with_marks(weights))
