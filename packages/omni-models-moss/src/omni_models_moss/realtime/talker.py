"""The talker of MOSS-TTS Realtime on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row: the text's next id, or a pad behind its end, beside the frame made last. A depth transformer makes the
frame from the hidden state. vLLM samples the first code, so that the code which ends the speech ends the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.errors import ConfigError
from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_core.modelkit.code_predictor import CodePredictor, PredictorConfig
from omni_core.payload import Payload
from omni_models_moss.realtime.checkpoint import Checkpoint
from omni_models_moss.seen import is_penalised, recent_codes
from omni_models_moss.tables import CodeTables
from omni_models_moss.talker import MossTalker

_NUM_CODES = 16
_CODEBOOK_SIZE = 1024
_SAMPLING = MtpSampling(do_sample=True, temperature=0.8, top_k=30, top_p=0.6, repetition_penalty=1.1)
_UNUSED = ("language_model.embed_tokens.",)
"""The backbone's own table, which the reference replaces by the first of `embed_tokens`."""


class MossTTSRealtimeTalker(MossTalker):
    """Make frames of 16 codes while the text comes in."""

    capabilities = ModelCapabilities(
        computes_inputs=True,
        cacheable_prompts=True,
        constrains_sampling=True,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=_NUM_CODES,
            accepts_req_infos=True,
            accepts_slots=True,
            accepts_positions=True,
            penalises_repetition=True,
            # The first code is sampled like the others; its penalty is not vLLM's, which looks back to the prompt.
            token_sampling={"repetition_penalty": 1.0},
            sample_uniforms=SampleUniforms(_NUM_CODES - 1, _CODEBOOK_SIZE),
            sampling=_SAMPLING,
        ),
    )

    begins: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        self.config = hf_config.get_text_config()
        _check_frame(facts, self.config, hf_config.local_config)
        self.facts = facts
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.frames = FrameMaker(facts, hf_config.local_config)
        self.remember(vllm_config, facts.num_codes, facts.text_pad)
        self.register_buffer("begins", torch.zeros(self.slots, dtype=torch.int64), persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def in_place(self) -> Iterable[nn.Module]:
        """Return what makes and embeds frames."""
        return (self.frames,)

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
        """Return the next rows [B, H] and the frames [B, Q].

        Args:
            token_ids: The first codes [B]; what follows on the end of speech is never used.
            embeds: Not used: embeddings of text ids.
            hidden: The hidden states they were sampled from [B, H].
            conditioning: The text side of the next rows [B, H].
            slots: The requests [B].
            positions: The positions of the next rows [B].
            req_infos: How each row's codes are chosen; None means the model's own settings.
            uniforms: Random numbers [B, Q - 1, 1024].
        """
        sampling = req_infos if req_infos is not None else [_SAMPLING] * len(token_ids)
        seen = self._recent(slots, positions, slice(1, None)) if is_penalised(sampling) else None
        codes = self.frames(hidden, token_ids, sampling, uniforms, seen)
        return conditioning + self.embed_codes(codes), codes

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
        local: `local_config` of the checkpoint.
    """

    def __init__(self, facts: Checkpoint, local: Mapping[str, Any]) -> None:
        super().__init__()
        hidden = local["hidden_size"]
        self.tables = CodeTables(facts.num_codes, facts.vocab_size, hidden, none=facts.pad_code)
        self.first_head = nn.Parameter(torch.empty(facts.vocab_size, hidden), requires_grad=False)
        self.first_table = nn.Parameter(torch.empty(facts.vocab_size, hidden), requires_grad=False)
        sizes = {
            "code_predictor_config": {**local, "vocab_size": facts.vocab_size},
            "num_code_groups": facts.num_codes,
            "hidden_size": hidden,
        }
        # The reference could choose the marks behind the codes, too, and would end there.
        self.depth = CodePredictor(PredictorConfig.read(sizes, choices=facts.pad_code))

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


def _check_frame(facts: Checkpoint, text: Any, local: Mapping[str, Any]) -> None:
    where = str(facts.folder / "config.json")
    if not 2 <= facts.num_codes <= _NUM_CODES or facts.pad_code != _CODEBOOK_SIZE:
        raise ConfigError(
            f"frames of {facts.num_codes} codes below {facts.pad_code} are not supported",
            where=where,
            hint=f"this pipeline takes frames of at most {_NUM_CODES} codes below {_CODEBOOK_SIZE}",
        )
    if local["hidden_size"] != text.hidden_size or text.vocab_size < facts.vocab_size:
        raise ConfigError(
            f"a depth transformer of {local['hidden_size']} and codes up to {facts.vocab_size} do not fit a backbone of "
            f"{text.hidden_size} with {text.vocab_size} text ids",
            where=where,
            hint="use an unchanged MOSS-TTS Realtime checkpoint",
        )
