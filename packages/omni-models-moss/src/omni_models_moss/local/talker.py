"""The talkers of MOSS-TTS Local and Nano on vLLM's layers; run in the engine core of stage 0.

Each step reads one row (a text id beside the frame made last) and decides between two ids whether there is another frame.
vLLM samples that decision as a token: the id of the slot that holds a frame, or the id that ends the speech. The local
transformer then makes the whole frame. Local and Nano are one model, but for the large transformer and the head that decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities, MtpSampling
from omni_core.errors import ConfigError
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.frame_talker import FrameStep
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.gpt2 import RotaryGPT2, tensor_names
from omni_models_moss.local.local_transformer import LocalConfig, LocalTransformer
from omni_models_moss.talker import MossTalker, frame_capabilities

_TEXT_TABLE = "transformer.wte.weight"
_TIED = ("audio_lm_heads.", "text_lm_head.")
"""Heads that some files hold a second time: they are the embeddings of the same codes, and of the same text."""


def _capabilities(num_codes: int, sampling: MtpSampling) -> ModelCapabilities:
    # Of two candidates none is beyond the reference's top-k 50; without it vLLM need not sort the whole vocabulary.
    decision = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    return frame_capabilities(num_codes, sampling, decision)


class MossTTSLocalTalker(MossTalker):
    """Make frames of 12 codes from text."""

    capabilities = _capabilities(12, MtpSampling(temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0))
    in_place = ("local",)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        raw, folder = hf_config.to_dict(), vllm_config.model_config.model
        facts = Checkpoint.from_config(raw, folder)
        assert self.capabilities.mtp is not None
        facts.check_frames(self.capabilities.mtp.num_codes)
        self.config = hf_config.get_text_config()
        self.facts = facts
        facts.check_ids(self.config.vocab_size, "im_start", "im_end", "audio_start", "audio_end", "user_slot", "assistant_slot")
        local = LocalConfig.read(Checkpoint.reader(raw, folder).section("gpt2_config"), facts)
        if local.hidden != self.config.hidden_size:
            raise ConfigError(
                f"a local transformer of {local.hidden} does not fit a backbone of {self.config.hidden_size}",
                where=str(facts.folder / "config.json"),
                hint=f"use an unchanged {facts.model} checkpoint",
            )
        self.local = LocalTransformer(local)
        name = maybe_prefix(prefix, "model")
        self.model = (
            RotaryGPT2(vllm_config=vllm_config, prefix=name, local=local)
            if facts.is_gpt2
            else Qwen3Model(vllm_config=vllm_config, prefix=name)
        )
        self.remember(vllm_config, facts.num_codes, facts.assistant_slot, counts_codes=True)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [B, Q] as [B, H]."""
        embeds: Tensor = self.local.codes(codes)
        return embeds

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits [B, V] where only another frame and the end of speech can win."""
        logits = hidden_states.new_full((len(hidden_states), self.config.vocab_size), -torch.inf)
        logits[:, self.facts.assistant_slot], logits[:, self.facts.audio_end] = self.local.decide(hidden_states).unbind(1)
        return logits

    def make_frames(self, step: FrameStep) -> Tensor:
        """Return the frames [B, Q]."""
        return self.local(step.hidden, step.sampling, step.uniforms, self.seen_by(step))  # type: ignore[no-any-return]

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
        decisions = [self.facts.assistant_slot, self.facts.audio_end]
        for name, tensor in weights:
            if self.facts.reads_decision and name == _TEXT_TABLE and tensor.shape[0] > max(decisions):
                self.local.text_head.data.copy_(tensor[decisions])
            yield name, tensor


class MossTTSNanoTalker(MossTTSLocalTalker):
    """Make frames of 16 codes from text."""

    capabilities = _capabilities(16, MtpSampling(temperature=0.8, top_k=25, top_p=0.95, repetition_penalty=1.2))
