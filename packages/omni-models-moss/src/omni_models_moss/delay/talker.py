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

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.errors import ConfigError
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.code_sampling import LastSampling
from omni_core.payload import Payload
from omni_models_moss.delay.checkpoint import Checkpoint
from omni_models_moss.delay.clock import DelayClock
from omni_models_moss.seen import SeenCodes
from omni_models_moss.tables import CodeTables
from omni_models_moss.talker import MossTalker

_MOST_CODES = 32
_CODEBOOK_SIZE = 1024
_SAMPLING = MtpSampling(do_sample=True, temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0)


class MossTTSDelayTalker(MossTalker):
    """Make delayed rows of up to 32 codes from text."""

    capabilities = ModelCapabilities(
        computes_inputs=True,
        cacheable_prompts=True,
        constrains_sampling=True,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=_MOST_CODES,
            accepts_req_infos=True,
            accepts_slots=True,
            accepts_positions=True,
            penalises_repetition=True,
            token_sampling={"temperature": 1.5, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0},
            sample_uniforms=SampleUniforms(_MOST_CODES, _CODEBOOK_SIZE),
            sampling=_SAMPLING,
        ),
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        _check_frame(facts)
        self.config = hf_config.get_text_config()
        self.facts = facts
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.text_head = ParallelLMHead(
            self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "text_head")
        )
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.heads = CodeHeads(facts, self.config.hidden_size)
        self.remember(vllm_config, facts.num_codes, facts.pad)
        self.seen = SeenCodes(self.slots, facts.num_codes, facts.codebook_size)
        self.clock = DelayClock(facts, self.config.vocab_size, *self.history.text_ids.shape)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def in_place(self) -> Iterable[nn.Module]:
        """Return the tables and heads of codes."""
        return (self.heads,)

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
        self.seen.begin(slot)
        self.clock.begin(slot, prompt_len, int(inputs["begun"]))

    def omni_constrain(self, slots: Tensor, positions: Tensor, logits: Tensor, sampling: Sequence[MtpSampling]) -> None:
        """Leave the text ids that the delay pattern allows."""
        self.clock.constrain(slots, positions, logits)

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep rows' codes as what is read next, and as what a repetition penalty counts."""
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
        positions: Tensor,
        req_infos: Sequence[MtpSampling] | None = None,
        uniforms: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the next rows [B, H] and their codes [B, Q], the pad where a row has none.

        Args:
            token_ids: The text ids of the next rows [B].
            embeds: Their embeddings [B, H].
            hidden: The hidden states they were sampled from [B, H].
            conditioning: Not used: what stands at the next positions is known only now.
            slots: The requests [B].
            positions: The positions of the next rows [B].
            req_infos: How each row's codes are chosen; None means the model's own settings.
            uniforms: Random numbers [B, 32, 1024].
        """
        sampling = req_infos if req_infos is not None else [_SAMPLING] * len(token_ids)
        codes = self.heads(hidden, sampling, uniforms, self.seen.of(slots, sampling))
        codes = torch.where(self.clock.spoken(slots, positions), codes, self.facts.pad_code)
        self.history.text_ids[slots, positions] = token_ids.to(self.history.text_ids.dtype)
        self.clock.tick(slots, positions, token_ids)
        return embeds + self.embed_codes(codes), codes

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


def _check_frame(facts: Checkpoint) -> None:
    if not 1 <= facts.num_codes <= _MOST_CODES or (facts.codebook_size, facts.pad_code) != (_CODEBOOK_SIZE, _CODEBOOK_SIZE):
        raise ConfigError(
            f"frames of {facts.num_codes} codes below {facts.codebook_size} with the pad {facts.pad_code} are not supported",
            where=str(facts.folder / "config.json"),
            hint=f"this pipeline takes frames of at most {_MOST_CODES} codes below {_CODEBOOK_SIZE}, which is the pad",
        )
