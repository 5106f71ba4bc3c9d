"""The talker of MOSS-TTS Local on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row (a text id beside the frame made last) and decides by a head of two whether there is another frame.
vLLM samples that decision as a token: the id of the slot that holds a frame, or the id that ends the speech. The local
transformer then makes the whole frame. Rows follow from `RowHistory`, so any position can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.errors import ConfigError
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.history import RowHistory
from omni_core.payload import Payload
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.local_transformer import LocalConfig, LocalTransformer

_NUM_CODES = 12
_CODEBOOK_SIZE = 1024
_SAMPLING = MtpSampling(do_sample=True, temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0)
_TIED = ("audio_lm_heads.", "text_lm_head.")
"""Heads that some files hold a second time: they are the embeddings of the same codes, and text is never made."""


class MossTTSLocalTalker(nn.Module):
    """Make frames of 12 codes from text."""

    capabilities = ModelCapabilities(
        computes_inputs=True,
        cacheable_prompts=True,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=_NUM_CODES,
            accepts_req_infos=True,
            accepts_slots=True,
            penalises_repetition=True,
            # Of two candidates none is beyond the reference's top-k 50; without it vLLM need not sort the whole vocabulary.
            token_sampling={"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
            sample_uniforms=SampleUniforms(_NUM_CODES, _CODEBOOK_SIZE),
            sampling=_SAMPLING,
        ),
    )
    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads a plain dict)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        _check_frame(facts)
        self.config = hf_config.get_text_config()
        self.facts = facts
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.local = LocalTransformer(LocalConfig.read(hf_config.gpt2_config, facts.num_codes, facts.codebook_size))
        slots = vllm_config.scheduler_config.max_num_seqs
        self.history = RowHistory(
            slots=slots,
            positions=vllm_config.model_config.max_model_len + 1,
            num_codes=facts.num_codes,
            text=facts.assistant_slot,
        )
        seen = torch.zeros((slots, facts.num_codes, facts.codebook_size), dtype=torch.bool)
        self.register_buffer("seen", seen, persistent=False)
        self.register_buffer("books", torch.arange(facts.num_codes), persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of text ids; rows proper come from `omni_embed`."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        """Return the normed hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits [B, V] where only another frame and the end of speech can win."""
        logits = hidden_states.new_full((len(hidden_states), self.config.vocab_size), -torch.inf)
        logits[:, [self.facts.assistant_slot, self.facts.audio_end]] = self.local.decide(hidden_states)
        return logits

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request."""
        self.history.begin(slot, inputs["text_ids"], inputs["codes"])
        self.seen[slot] = False

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        return self.omni_condition(slots, positions) + self.local.embed(self.history.codes[slots, positions])

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H]."""
        return self.model.embed_input_ids(self.history.text_ids[slots, positions])

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them, and as what a repetition penalty counts."""
        self.history.record(slots, positions, codes)
        self.seen[slots[:, None], self.books, codes.long()] = True

    def omni_end(self, slot: int) -> None:
        """Forget nothing: the next `omni_begin` of the slot overwrites whatever can be read."""

    def mtp(
        self,
        token_ids: Tensor,
        embeds: Tensor,
        hidden: Tensor,
        conditioning: Tensor,
        *,
        slots: Tensor,
        req_infos: Sequence[MtpSampling] | None = None,
        uniforms: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the next rows [B, H] and the frames [B, 12].

        Args:
            token_ids: The decisions [B]; what follows on the end of speech is never used.
            embeds: Their embeddings [B, H].
            hidden: The hidden states they were sampled from [B, H].
            conditioning: The text side of the next rows [B, H].
            slots: Where each request's earlier frames are [B].
            req_infos: How each row's codes are chosen; None means the model's own settings.
            uniforms: Random numbers [B, 12, 1024].
        """
        sampling = req_infos if req_infos is not None else [_SAMPLING] * len(token_ids)
        penalised = any(row.repetition_penalty != 1 for row in sampling)
        codes = self.local(hidden, sampling, uniforms, self.seen[slots] if penalised else None)
        return conditioning + self.local.embed(codes), codes

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose weights vLLM takes away while new ones come; `local` gets its own in place."""
        in_place = set(self.local.modules())
        return (module for module in super().modules(*args, **kwargs) if module not in in_place)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        names = {"transformer.embed_tokens.weight": "model.embed_tokens.weight"}
        names |= decoder_names("transformer", "model", self.config.num_hidden_layers)
        loaded = BackboneWeights(self, names, self.local.checkpoint_views(), _TIED).load(weights)
        self.local.finish_loading()
        return loaded


def _check_frame(facts: Checkpoint) -> None:
    if (facts.num_codes, facts.codebook_size) != (_NUM_CODES, _CODEBOOK_SIZE):
        raise ConfigError(
            f"frames of {facts.num_codes} codes below {facts.codebook_size} are not supported",
            where=str(facts.folder / "config.json"),
            hint=f"use MOSS-TTS-Local-Transformer-v1.5: {_NUM_CODES} codes below {_CODEBOOK_SIZE}",
        )
