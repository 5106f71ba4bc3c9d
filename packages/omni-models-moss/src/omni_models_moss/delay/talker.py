"""The talker of the delay pattern on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row and makes the next: vLLM samples its text id from the first head, within what the delay pattern allows,
and the other heads, one for each codebook, give the codes of all frames that the row has a part of, all from one hidden state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.code_sampling import LastSampling
from omni_core.modelkit.frame_talker import FrameStep
from omni_core.payload import Payload
from omni_models_moss.delay.checkpoint import Checkpoint
from omni_models_moss.delay.clock import DelayClock
from omni_models_moss.tables import CodeTables
from omni_models_moss.talker import MossTalker, frame_capabilities

_MOST_CODES = 32
_SAMPLING = MtpSampling(do_sample=True, temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0)
_TEXT = {"temperature": 1.5, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}

_IDS = ("pad", "im_start", "im_end", "audio_start", "audio_end", "user_slot", "gen_slot", "delay_slot")


class MossTTSDelayTalker(MossTalker):
    """Make delayed rows of up to 32 codes from text; a row has the pad for codebooks that are silent in it."""

    capabilities = frame_capabilities(_MOST_CODES, _SAMPLING, _TEXT, constrains=True)
    in_place = ("heads",)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        facts.check_frames(_MOST_CODES)
        self.config = hf_config.get_text_config()
        self.facts = facts
        facts.check_ids(self.config.vocab_size, *_IDS)
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.text_head = ParallelLMHead(
            self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "text_head")
        )
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.heads = CodeHeads(facts, self.config.hidden_size)
        self.remember(vllm_config, facts.num_codes, facts.pad, counts_codes=True)
        self.clock = DelayClock(facts, self.config.vocab_size, *self.history.text_ids.shape)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of rows' codes [B, Q] as [B, H]; no code has an embedding, too."""
        embeds: Tensor = self.heads.tables(codes)
        return embeds

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [B, V] of the next text id; `omni_constrain` says which can win."""
        logits: Tensor | None = self.logits_processor(self.text_head, hidden_states)
        return logits

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request."""
        super().omni_begin(slot, inputs, prompt_len)
        self.clock.begin(slot, prompt_len, int(inputs["begun"]))

    def omni_constrain(self, slots: Tensor, positions: Tensor, logits: Tensor, sampling: Sequence[MtpSampling]) -> None:
        """Leave the text ids that the delay pattern allows."""
        self.clock.constrain(slots, positions, logits)

    def make_frames(self, step: FrameStep) -> Tensor:
        """Return the codes of the next rows [B, Q], and take down the text ids beside them, which are known only now."""
        slots, positions = step.slots, step.positions
        codes = self.heads(step.hidden, step.sampling, step.uniforms, self.seen_by(step))
        codes = torch.where(self.clock.spoken(slots, positions), codes, self.facts.pad_code)
        self.history.text_ids[slots, positions] = step.token_ids.to(self.history.text_ids.dtype)
        self.clock.tick(slots, positions, step.token_ids)
        return codes

    def next_rows(self, step: FrameStep, codes: Tensor) -> Tensor:
        """Return the rows [B, H] that read these codes beside the sampled text ids."""
        return step.embeds + self.embed_codes(codes)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        names = {
            "language_model.embed_tokens.weight": "model.embed_tokens.weight",
            "lm_heads.0.weight": "text_head.weight",
            **decoder_names("language_model", "model", self.config.num_hidden_layers),
        }
        return BackboneWeights(self, names, self.heads.checkpoint_views()).load(weights)


class CodeHeads(nn.Module):
    """The tables that embed codes and the heads that choose them.

    Args:
        facts: Number and size of the codebooks.
        hidden: Width of the backbone.
    """

    def __init__(self, facts: Checkpoint, hidden: int) -> None:
        super().__init__()
        rows = facts.codebook_size + 1
        self._facts = facts
        self.tables = CodeTables(facts.num_codes, rows, hidden, none=facts.pad_code)
        self.weight = nn.Parameter(torch.empty(facts.num_codes, rows, hidden), requires_grad=False)
        self._sampling = LastSampling(facts.codebook_size)

    def checkpoint_views(self) -> dict[str, Tensor]:
        """Return where each tensor of the checkpoint goes, by its name."""
        views = self.tables.views("emb_ext.{}.weight")
        return views | {f"lm_heads.{book + 1}.weight": self.weight.data[book] for book in range(self._facts.num_codes)}

    def forward(self, hidden: Tensor, sampling: Sequence[MtpSampling], uniforms: Tensor | None, seen: Tensor | None) -> Tensor:
        """Return a code of each codebook for each row, int64 [B, Q]; the pad is never among them.

        Args:
            hidden: The backbone's hidden states [B, H].
            sampling: How each row chooses.
            uniforms: Random numbers [B, at least Q, codebook size]; see `CodeSampling.choose`.
            seen: bool [B, Q, codebook size], the codes that a repetition penalty lowers.
        """
        books, size = self._facts.num_codes, self._facts.codebook_size
        # Every head has a row for the pad, which the reference never chooses.
        logits = F.linear(hidden, self.weight.flatten(0, 1)).view(-1, books, size + 1)[..., :size].reshape(-1, size).float()
        drawn = None if uniforms is None else uniforms[:, :books].reshape(-1, size)
        lowered = None if seen is None else seen.reshape(-1, size)
        settings = self._sampling.of(sampling, hidden.device, books)
        return settings.choose(logits, drawn, lowered).view(-1, books)
