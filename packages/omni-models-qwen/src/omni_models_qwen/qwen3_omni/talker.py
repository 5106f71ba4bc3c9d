"""The talker of Qwen3-Omni on vLLM's layers; runs in the engine core of stage 1.

Each step reads one row, the thinker's for the next token of the reply beside the frame made last, samples codebook 0 by vLLM's
own sampler, and lets the code predictor complete the frame. The thinker's rows arrive while the talker runs; behind the last
one follow the mark of the text's end and then padding. Any position can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.code_predictor import PredictorConfig
from omni_core.modelkit.config_reader import ConfigReader
from omni_core.modelkit.history import RowHistory, as_tensor
from omni_core.payload import Payload
from omni_models_qwen.qwen3_omni.chat import MODEL
from omni_models_qwen.qwen3_omni.checkpoint import Checkpoint
from omni_models_qwen.qwen3_omni.talker_input import PROJECT_HIDDEN, PROJECT_TEXT, READ_BOS, READ_PAD
from omni_models_qwen.qwen3_omni.talker_layers import TalkerBackbone
from omni_models_qwen.qwen3_omni.talker_weights import TalkerWeights
from omni_models_qwen.talking.frame_talker import QwenFrameTalker, ResizeMlp
from omni_models_qwen.talking.thinker_reader import ThinkerReader

_PAD, _BOS, _EOS = range(3)
"""Rows of the marks."""


class Qwen3OmniTalker(ThinkerReader, QwenFrameTalker):
    """Make frames of 16 codes from the rows of the thinker."""

    # Fixed by the reference, whatever a request's own temperature is; greedy requests are greedy throughout.
    mtp_sampling_params = MtpSampling(do_sample=True, temperature=1.0, top_k=50, top_p=0.8)
    row_width = "thinker_hidden_size"

    kinds: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        hf_config = model_config.hf_config
        facts = Checkpoint.read(model_config.model)
        self.config = text = hf_config.get_text_config()
        self.model = TalkerBackbone(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        where = str(facts.folder / "config.json")
        sizes = ConfigReader(hf_config.to_dict(), where, MODEL, "talker_config.").section("code_predictor_config")
        self.build_head(
            PredictorConfig.read(sizes, codes=facts.num_codes, talker_hidden=text.hidden_size),
            vocab_size=text.vocab_size,
            end_id=facts.codec.eos,
            prefix=prefix,
            where=where,
        )
        width = facts.thinker_width
        self.text_projection = ResizeMlp(width, text.intermediate_size, text.hidden_size)
        self.hidden_projection = ResizeMlp(width, text.intermediate_size, text.hidden_size)
        self.remember(vllm_config, width, (facts.text.tts_pad, facts.text.tts_bos, facts.text.tts_eos))
        self.history = RowHistory(self.slots, self.positions, facts.num_codes, 0)
        kinds = torch.full((self.slots, self.positions), PROJECT_TEXT, dtype=torch.uint8)
        self.register_buffer("kinds", kinds, persistent=False)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take what the input processor made of a request: kinds [P], codes [P, 16], and 3-D positions where there are some."""
        self.history.begin(slot, (), inputs["codes"])
        kinds = as_tensor(inputs["kinds"])
        self.kinds[slot].fill_(PROJECT_TEXT)
        self.kinds[slot, : len(kinds)].copy_(kinds)
        self.begin_rows(slot, inputs, prompt_len)

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        kinds = self.kinds[slots, positions][:, None]
        theirs = self.theirs(slots, positions, end=_EOS, pad=_PAD)
        for kind, mark in ((READ_PAD, _PAD), (READ_BOS, _BOS)):
            theirs = torch.where(kinds == kind, self.marks[mark], theirs)
        beside: Tensor = self.text_projection(theirs)
        is_hidden = kinds == PROJECT_HIDDEN
        if is_hidden.device.type != "cpu" or bool(is_hidden.any()):  # elsewhere asking would wait for the device
            beside = torch.where(is_hidden, self.hidden_projection(theirs), beside)
        return beside + self.embed_frames(self.history.codes_at(slots, positions))

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H], which lie behind the prompt."""
        beside: Tensor = self.text_projection(self.theirs(slots, positions, end=_EOS, pad=_PAD))
        return beside

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        views = self.code_predictor.checkpoint_views()
        loader = TalkerWeights(self, views, self.config.num_hidden_layers, self.config.num_experts)
        loaded = loader.load(self.with_marks(weights))
        self.code_predictor.finish_loading()
        return loaded
