"""The talkers of MOSS-TTS Local and Nano on vLLM's layers; run in the engine core of stage 0.

Each step reads one row (a text id beside the frame made last) and decides between two ids whether there is another frame.
vLLM samples that decision as a token: the id of the slot that holds a frame, or the id that ends the speech. The local
transformer then makes the whole frame. Local and Nano are one model, but for the large transformer and the head that decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.errors import ConfigError
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.payload import Payload
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.gpt2 import RotaryGPT2, tensor_names
from omni_models_moss.local.local_transformer import LocalConfig, LocalTransformer
from omni_models_moss.seen import SeenCodes
from omni_models_moss.talker import MossTalker

_CODEBOOK_SIZE = 1024
_TEXT_TABLE = "transformer.wte.weight"
_TIED = ("audio_lm_heads.", "text_lm_head.")
"""Heads that some files hold a second time: they are the embeddings of the same codes, and of the same text."""


def _capabilities(num_codes: int, sampling: MtpSampling) -> ModelCapabilities:
    return ModelCapabilities(
        computes_inputs=True,
        cacheable_prompts=True,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=num_codes,
            accepts_req_infos=True,
            accepts_slots=True,
            penalises_repetition=True,
            # Of two candidates none is beyond the reference's top-k 50; without it vLLM need not sort the whole vocabulary.
            token_sampling={"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
            sample_uniforms=SampleUniforms(num_codes, _CODEBOOK_SIZE),
            sampling=sampling,
        ),
    )


class MossTTSLocalTalker(MossTalker):
    """Make frames of 12 codes from text."""

    capabilities = _capabilities(12, MtpSampling(temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0))

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        self._check_frame(facts)
        self.config = hf_config.get_text_config()
        self.facts = facts
        local = LocalConfig.read(hf_config.gpt2_config, facts)
        self.local = LocalTransformer(local)
        name = maybe_prefix(prefix, "model")
        self.model = (
            RotaryGPT2(vllm_config=vllm_config, prefix=name, local=local)
            if facts.is_gpt2
            else Qwen3Model(vllm_config=vllm_config, prefix=name)
        )
        self.remember(vllm_config, facts.num_codes, facts.assistant_slot)
        self.seen = SeenCodes(self.slots, facts.num_codes, facts.codebook_size)
        self._decisions = [facts.assistant_slot, facts.audio_end]
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    @classmethod
    def _check_frame(cls, facts: Checkpoint) -> None:
        assert cls.capabilities.mtp is not None
        most = cls.capabilities.mtp.num_codes
        if facts.num_codes > most or facts.codebook_size != _CODEBOOK_SIZE:
            raise ConfigError(
                f"frames of {facts.num_codes} codes below {facts.codebook_size} are not supported",
                where=str(facts.folder / "config.json"),
                hint=f"this pipeline takes frames of at most {most} codes below {_CODEBOOK_SIZE}",
            )

    def in_place(self) -> Iterable[nn.Module]:
        """Return the local transformer."""
        return (self.local,)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [B, Q] as [B, H]."""
        embeds: Tensor = self.local.codes(codes)
        return embeds

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits [B, V] where only another frame and the end of speech can win."""
        logits = hidden_states.new_full((len(hidden_states), self.config.vocab_size), -torch.inf)
        logits[:, self._decisions] = self.local.decide(hidden_states)
        return logits

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request."""
        super().omni_begin(slot, inputs, prompt_len)
        self.seen.begin(slot)

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them, and as what a repetition penalty counts."""
        super().omni_record(slots, positions, codes)
        self.seen.record(slots, codes)

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
        """Return the next rows [B, H] and the frames [B, Q].

        Args:
            token_ids: The decisions [B]; what follows on the end of speech is never used.
            embeds: Their embeddings [B, H].
            hidden: The hidden states they were sampled from [B, H].
            conditioning: The text side of the next rows [B, H].
            slots: Where each request's earlier frames are [B].
            req_infos: How each row's codes are chosen; None means the model's own settings.
            uniforms: Random numbers [B, Q, 1024].
        """
        assert self.capabilities.mtp is not None
        sampling = req_infos if req_infos is not None else [self.capabilities.mtp.sampling] * len(token_ids)
        codes = self.local(hidden, sampling, uniforms, self.seen.of(slots, sampling))
        return conditioning + self.embed_codes(codes), codes

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        layers = self.config.num_hidden_layers
        if self.facts.is_gpt2:
            names = tensor_names("transformer", "model", layers)
        else:
            names = {"transformer.embed_tokens.weight": "model.embed_tokens.weight"}
            names |= decoder_names("transformer", "model", layers)
        loaded = BackboneWeights(self, names, self.local.checkpoint_views(), _TIED).load(self._with_decisions(weights))
        self.local.finish_loading()
        return loaded

    def _with_decisions(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass tensors on; where the decision is two rows of the text embeddings, the local transformer gets a copy of them."""
        for name, tensor in weights:
            if self.facts.reads_decision and name == _TEXT_TABLE and tensor.shape[0] > max(self._decisions):
                self.local.text_head.data.copy_(tensor[self._decisions])
            yield name, tensor


class MossTTSNanoTalker(MossTTSLocalTalker):
    """Make frames of 16 codes from text."""

    capabilities = _capabilities(16, MtpSampling(temperature=0.8, top_k=25, top_p=0.95, repetition_penalty=1.2))
