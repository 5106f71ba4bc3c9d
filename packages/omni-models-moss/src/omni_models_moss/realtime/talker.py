"""The talker of MOSS-TTS Realtime on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row: the text's next id, or a pad behind its end, beside the frame made last. A depth transformer makes the
frame from the hidden state. vLLM samples the first code, so that the code which ends the speech ends the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.code_predictor import CodePredictor, PredictorConfig
from omni_core.modelkit.config_reader import ConfigReader
from omni_core.modelkit.frame_talker import FrameStep
from omni_core.payload import Payload
from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.seen import is_penalised, recent_codes
from omni_models_moss.tables import CodeTables
from omni_models_moss.talker import MossTalker, frame_capabilities

_NUM_CODES = 16
_SAMPLING = MtpSampling(do_sample=True, temperature=0.8, top_k=30, top_p=0.6, repetition_penalty=1.1)
_FIRST = {"repetition_penalty": 1.0}
"""The first code is sampled like the others; its penalty is not vLLM's, which looks back to the prompt."""
_UNUSED = ("language_model.embed_tokens.",)
"""The backbone's own table, which the reference replaces by the first of `embed_tokens`."""


class MossTTSRealtimeTalker(MossTalker):
    """Make frames of 16 codes while the text comes in."""

    capabilities = frame_capabilities(_NUM_CODES, _SAMPLING, _FIRST, steps=_NUM_CODES - 1, constrains=True)
    in_place = ("frames",)

    begins: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        raw, folder = hf_config.to_dict(), vllm_config.model_config.model
        facts = Checkpoint.from_config(raw, folder)
        facts.check_frames(_NUM_CODES, least=2)
        self.config = hf_config.get_text_config()
        self.facts = facts
        facts.check_ids(self.config.vocab_size, "text_pad", "reference_pad")
        depth = _depth_config(Checkpoint.reader(raw, folder).section("local_config"), facts, self.config)
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.frames = FrameMaker(facts, depth)
        self.remember(vllm_config, facts.num_codes, facts.text_pad, counts_codes=False)
        self.register_buffer("begins", torch.zeros(self.slots, dtype=torch.int64), persistent=False)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [B, Q] as [B, H]; no code has an embedding, too."""
        embeds: Tensor = self.frames.tables(codes)
        return embeds

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits [B, V] where only first codes and the end of speech can win."""
        first = self.frames.first_logits(hidden_states)
        logits = hidden_states.new_full((len(hidden_states), self.config.vocab_size), -torch.inf)
        logits[:, : self.facts.pad_code] = first[:, : self.facts.pad_code]
        logits[:, self.facts.end_code] = first[:, self.facts.end_code]
        return logits

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request; its text goes on behind the prompt."""
        super().omni_begin(slot, inputs, prompt_len)
        self.begins[slot] = prompt_len

    def omni_constrain(self, slots: Tensor, positions: Tensor, logits: Tensor, sampling: Sequence[MtpSampling]) -> None:
        """Lower the first codes of the last frames."""
        if not is_penalised(sampling):
            return
        size = self.facts.pad_code
        seen = self._recent(slots, positions, slice(0, 1))[:, 0]
        penalty = torch.tensor([row.repetition_penalty for row in sampling], dtype=logits.dtype, device=logits.device)[:, None]
        codes = logits[:, :size]
        lowered = torch.where(codes > 0, codes / penalty, codes * penalty)
        logits[:, :size] = torch.where(seen, lowered, codes)

    def _recent(self, slots: Tensor, positions: Tensor, books: slice) -> Tensor:
        facts = self.facts
        begins = self.begins[slots]
        return recent_codes(self.history, slots, positions, begins, window=facts.window, books=books, size=facts.pad_code)

    def make_frames(self, step: FrameStep) -> Tensor:
        """Return the frames [B, Q] that begin with the sampled codes."""
        seen = self._recent(step.slots, step.positions, slice(1, None)) if is_penalised(step.sampling) else None
        return self.frames(step.hidden, step.token_ids, step.sampling, step.uniforms, seen)  # type: ignore[no-any-return]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        names = {"embed_tokens.0.weight": "model.embed_tokens.weight"}
        names |= decoder_names("language_model", "model", self.config.num_hidden_layers)
        loaded = BackboneWeights(self, names, self.frames.checkpoint_views(), _UNUSED).load(weights)
        self.frames.depth.finish_loading()
        return loaded


class FrameMaker(nn.Module):
    """The depth transformer with its heads, and the tables by which the backbone reads frames.

    Args:
        facts: Number and size of the codebooks.
        depth: Sizes of the depth transformer.
    """

    def __init__(self, facts: Checkpoint, depth: PredictorConfig) -> None:
        super().__init__()
        hidden = depth.hidden
        self.tables = CodeTables(facts.num_codes, facts.vocab_size, hidden, none=facts.pad_code)
        self.first_head = nn.Parameter(torch.empty(facts.vocab_size, hidden), requires_grad=False)
        self.first_table = nn.Parameter(torch.empty(facts.vocab_size, hidden), requires_grad=False)
        self.depth = CodePredictor(depth)

    def checkpoint_views(self) -> dict[str, Tensor]:
        """Return where each tensor of the checkpoint goes, by its name."""
        views = {f"embed_tokens.{book + 1}.weight": self.tables.table(book) for book in range(self.tables.books)}
        views["local_transformer.local_lm_heads.0.weight"] = self.first_head.data
        depth = self.depth.checkpoint_views(embedding="model.embed_tokens", head="local_lm_heads", first=1)
        depth["model.embed_tokens.0.weight"] = self.first_table.data
        del depth[f"model.embed_tokens.{self.tables.books - 1}.weight"]  # nothing is read after the last code
        return views | {f"local_transformer.{name}": view for name, view in depth.items()}

    def first_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [B, vocabulary of codes] of first codes, for the backbone's hidden states [B, H]."""
        return F.linear(self.depth.begin(hidden), self.first_head)

    def forward(
        self,
        hidden: Tensor,
        first: Tensor,
        sampling: Sequence[MtpSampling],
        uniforms: Tensor | None,
        seen: Tensor | None,
    ) -> Tensor:
        """Return frames int64 [B, Q] that begin with the codes `first` [B]; see `CodePredictor`."""
        rest: Tensor = self.depth(hidden, F.embedding(first, self.first_table), sampling, uniforms, seen)
        return torch.cat([first[:, None], rest], dim=1)


def _depth_config(section: ConfigReader, facts: Checkpoint, text: Any) -> PredictorConfig:
    """Return the sizes of the depth transformer, which fits the backbone.

    Raises:
        ConfigError: A size is missing or does not fit.
    """
    hidden = section.count("hidden_size")
    if hidden != text.hidden_size or text.vocab_size < facts.vocab_size:
        raise section.fault(
            f"hidden_size {hidden} and codes up to {facts.vocab_size} do not fit a backbone of {text.hidden_size} with "
            f"{text.vocab_size} text ids"
        )
    # The reference could choose the marks behind the codes, too, and would end there.
    return PredictorConfig.read(
        section, codes=facts.num_codes, talker_hidden=hidden, vocab_size=facts.vocab_size, choices=facts.pad_code
    )
