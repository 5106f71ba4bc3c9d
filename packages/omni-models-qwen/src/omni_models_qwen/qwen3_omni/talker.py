"""The talker of Qwen3-Omni on vLLM's layers; runs in the engine core of stage 1.

Each step reads one row, the thinker's for the next token of the reply beside the frame made last, samples codebook 0 by vLLM's
own sampler, and lets the code predictor complete the frame. The thinker's rows arrive while the talker runs; behind the last
one follow the mark of the text's end and then padding. Any position can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.code_predictor import PredictorConfig
from omni_core.modelkit.history import RowHistory, as_tensor
from omni_core.modelkit.paged_rows import PagedRows
from omni_core.payload import Payload
from omni_models_qwen.qwen3_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen3_omni.talker_input import PROJECT_HIDDEN, PROJECT_TEXT, READ_BOS, READ_PAD
from omni_models_qwen.qwen3_omni.talker_layers import TalkerBackbone
from omni_models_qwen.qwen3_omni.talker_weights import TalkerWeights
from omni_models_qwen.talking.frame_talker import FrameTalker, ResizeMlp
from omni_models_qwen.talking.marks import EMBEDDINGS, Marks, take_marks

_PAD, _BOS, _EOS = range(3)
"""Rows of the marks."""


class Qwen3OmniTalker(FrameTalker, SupportsMRoPE):
    """Make frames of 16 codes from the rows of the thinker."""

    # Fixed by the reference, whatever a request's own temperature is; greedy requests are greedy throughout.
    mtp_sampling_params = MtpSampling(do_sample=True, temperature=1.0, top_k=50, top_p=0.8)
    row_width = "thinker_hidden_size"
    in_place = ("code_predictor", "mark_rows")

    kinds: Tensor
    received: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        hf_config = model_config.hf_config
        facts = Checkpoint.read(model_config.model)
        self.config = text = hf_config.get_text_config()
        self.model = TalkerBackbone(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.build_head(
            PredictorConfig.read({**hf_config.to_dict(), "hidden_size": text.hidden_size}),
            vocab_size=text.vocab_size,
            end_id=facts.codec.eos,
            prefix=prefix,
            where=str(facts.folder / "config.json"),
        )
        width = facts.thinker_width
        self.text_projection = ResizeMlp(width, text.intermediate_size, text.hidden_size)
        self.hidden_projection = ResizeMlp(width, text.intermediate_size, text.hidden_size)
        self._mark_ids = (facts.text.tts_pad, facts.text.tts_bos, facts.text.tts_eos)
        slots, positions = vllm_config.scheduler_config.max_num_seqs, model_config.max_model_len + 1
        self.history = RowHistory(slots, positions, facts.num_codes, 0)
        self.rows = PagedRows(slots, positions, width, model_config.dtype)
        self.mark_rows = Marks(len(self._mark_ids), width, model_config.dtype)
        self.register_buffer("kinds", torch.full((slots, positions), PROJECT_TEXT, dtype=torch.uint8), persistent=False)
        self.register_buffer("received", torch.zeros(slots, dtype=torch.int64), persistent=False)
        self._rope: list[tuple[Tensor, int]] = [(torch.empty((3, 0), dtype=torch.int64), 0)] * slots

    @property
    def marks(self) -> Tensor:
        """The thinker's rows for padding, for the begin of the text and for its end [3, W]."""
        return self.mark_rows.rows

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take what the input processor made of a request: kinds [P], codes [P, 16], and 3-D positions where there are some."""
        self.history.begin(slot, (), inputs["codes"])
        kinds = as_tensor(inputs["kinds"])
        self.kinds[slot].fill_(PROJECT_TEXT)
        self.kinds[slot, : len(kinds)].copy_(kinds)
        self.rows.end(slot)
        self.received[slot] = 0
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
        kinds = self.kinds[slots, positions][:, None]
        theirs = self._theirs(slots, positions)
        for kind, mark in ((READ_PAD, _PAD), (READ_BOS, _BOS)):
            theirs = torch.where(kinds == kind, self.marks[mark], theirs)
        beside: Tensor = self.text_projection(theirs)
        is_hidden = kinds == PROJECT_HIDDEN
        if is_hidden.device.type != "cpu" or bool(is_hidden.any()):  # elsewhere asking would wait for the device
            beside = torch.where(is_hidden, self.hidden_projection(theirs), beside)
        return beside + self.embed_frames(self.history.codes[slots, positions])

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H], which lie behind the prompt."""
        beside: Tensor = self.text_projection(self._theirs(slots, positions))
        return beside

    def _theirs(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the thinker's rows [T, W]. A position is computed only when its row is there, or when no more rows come."""
        behind = (positions - self.received[slots])[:, None]
        marks = torch.where(behind == 0, self.marks[_EOS], self.marks[_PAD])
        return torch.where(behind < 0, self.rows.read(slots, positions), marks)

    def omni_end(self, slot: int) -> None:
        """Free the rows of a request."""
        self.rows.end(slot)

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Return whether files of such tensors alone need not be read; most of the checkpoint is the thinker's."""
        return not name.startswith("talker.") and name != EMBEDDINGS

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        views = self.code_predictor.checkpoint_views()
        loader = TalkerWeights(self, views, self.config.num_hidden_layers, self.config.num_experts)
        loaded = loader.load(take_marks(weights, self._mark_ids, self.marks.shape[1]))
        self.code_predictor.finish_loading()
        return loaded
