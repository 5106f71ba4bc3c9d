"""Talkers of a 12 Hz codec: codebook 0 of a frame by vLLM's sampler, the rest of it by the code predictor.

Runs in the engine core of the talker's stage.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.errors import ConfigError
from omni_core.modelkit.code_predictor import CodePredictor, PredictorConfig
from omni_core.modelkit.frame_talker import FrameStep, FrameTalker
from omni_core.modelkit.history import NO_CODE

CONTROL_IDS = 1024
"""The last ids of the codec's vocabulary stand for no sound: marks, languages and speakers."""


class QwenFrameTalker(FrameTalker):
    """Make frames of 16 codes from rows.

    A subclass sets `model`, vLLM's backbone whose table embeds codebook 0, calls `build_head`, sets `history`, and has the
    input methods: `omni_begin`, `omni_embed`, `omni_condition` and `omni_end`.
    """

    mtp_output_key = ("codes", "audio")
    mtp_num_codes = 16
    mtp_accepts_req_infos = True
    mtp_sample_uniforms = True
    mtp_sample_steps = 15
    mtp_sample_vocab_size = 2048
    mtp_sampling_params: MtpSampling
    # Each row's settings are read on the host at every call, which a captured graph would freeze.
    mtp_graph_safe = False
    in_place = ("code_predictor",)

    suppressed: Tensor

    def build_head(self, predictor: PredictorConfig, *, vocab_size: int, end_id: int, prefix: str, where: str) -> None:
        """Build what follows on the backbone: the head of codebook 0 and the code predictor.

        Args:
            predictor: Sizes of the code predictor.
            vocab_size: Ids of codebook 0, control ids included.
            end_id: The only control id that may be sampled.
            prefix: vLLM's prefix of this model.
            where: The checkpoint's configuration, for messages.

        Raises:
            ConfigError: The frames are not those of a 12 Hz codec.
        """
        codes, size = predictor.steps + 1, predictor.vocab_size
        if codes != self.mtp_num_codes or size != self.mtp_sample_vocab_size:
            raise ConfigError(
                f"frames of {codes} codes below {size} are not supported",
                where=where,
                hint=f"use a 12 Hz checkpoint: {self.mtp_num_codes} codes below {self.mtp_sample_vocab_size}",
            )
        name = maybe_prefix(prefix, "codec_head")
        self.codec_head = ParallelLMHead(vocab_size, predictor.talker_hidden, prefix=name, quant_config=None)
        self.logits_processor = LogitsProcessor(vocab_size)
        self.code_predictor = CodePredictor(predictor)
        suppressed = torch.arange(vocab_size) >= vocab_size - CONTROL_IDS
        suppressed[end_id] = False
        self.register_buffer("suppressed", suppressed, persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [B, V] where only codes and the end of speech can win."""
        logits: Tensor | None = self.logits_processor(self.codec_head, hidden_states)
        return None if logits is None else logits.masked_fill_(self.suppressed, -torch.inf)

    def make_frames(self, step: FrameStep) -> Tensor:
        """Return the frames [B, 16] of the sampled codes 0."""
        rest: Tensor = self.code_predictor(step.hidden, step.embeds, step.sampling, step.uniforms)
        return torch.cat([step.token_ids[:, None].to(rest.dtype), rest], dim=1)

    def next_rows(self, step: FrameStep, codes: Tensor) -> Tensor:
        """Return the rows [B, H] that read these frames; the embeddings of their codes 0 are there already."""
        return step.embeds + self.code_predictor.embed(codes[:, 1:]) + step.conditioning

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [T, 16]; NO_CODE adds nothing."""
        first = codes[:, 0]
        zeroth = self.model.embed_tokens(first.clamp_min(0))
        return torch.where((first != NO_CODE)[:, None], zeroth, 0) + self.code_predictor.embed(codes[:, 1:])


class ResizeMlp(nn.Module):
    """Bring rows of another width to the talker's, by two layers."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inner)
        self.linear_fc2 = nn.Linear(inner, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows [n, outputs] for rows [n, inputs]."""
        return self.linear_fc2(F.silu(self.linear_fc1(x)))

    @staticmethod
    def names(name: str) -> dict[str, str]:
        """Return the tensors' names in a checkpoint where this module is `talker.{name}`, and in a talker that calls it so."""
        parts = ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias")
        return {f"talker.{name}.{part}": f"{name}.{part}" for part in parts}
