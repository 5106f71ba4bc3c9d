"""The talker of Qwen3-TTS on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row (text beside the frame made last), samples codebook 0 by vLLM's own sampler, and lets the code
predictor complete the frame. Rows follow from `VoicedHistory`, so any position can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.code_predictor import PredictorConfig
from omni_core.modelkit.config_reader import ConfigReader
from omni_core.payload import Payload
from omni_models_qwen.qwen3_tts.checkpoint import MODEL, Checkpoint
from omni_models_qwen.qwen3_tts.history import VoicedHistory
from omni_models_qwen.qwen3_tts.talker_weights import TalkerWeights
from omni_models_qwen.talking.frame_talker import QwenFrameTalker, ResizeMlp


class Qwen3TTSTalker(QwenFrameTalker, SupportsLoRA):
    """Make frames of 16 codes from text."""

    mtp_sampling_params = MtpSampling(do_sample=True, temperature=0.9, top_k=50, top_p=1.0)

    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads a plain dict)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    # Adapters are made for the whole checkpoint's model, where the talker is a part; they may change its backbone.
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"talker.": ""})

    history: VoicedHistory

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        raw = hf_config.talker_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        self.config = hf_config.get_text_config()
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        where = str(facts.folder / "config.json")
        sizes = ConfigReader(raw, where, MODEL, "talker_config.").section("code_predictor_config")
        self.build_head(
            PredictorConfig.read(sizes, codes=facts.num_codes, talker_hidden=facts.hidden_size),
            vocab_size=facts.vocab_size,
            end_id=facts.codec.eos,
            prefix=prefix,
            where=where,
        )
        self.text_embedding = VocabParallelEmbedding(raw.get("text_vocab_size", 151_936), raw.get("text_hidden_size", 2048))
        width = self.text_embedding.embedding_dim
        self.text_projection = ResizeMlp(width, width, facts.hidden_size)
        self._markers = _Markers((facts.text.tts_pad, facts.text.tts_bos, facts.text.tts_eos))
        self.history = VoicedHistory(
            slots=vllm_config.scheduler_config.max_num_seqs,
            positions=vllm_config.model_config.max_model_len + 1,
            num_codes=facts.num_codes,
            hidden=facts.hidden_size,
            text_pad=facts.text.tts_pad,
        )

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the plan that the input processor made for a request."""
        self.history.take(slot, inputs)

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        history = self.history
        codes = history.codes_at(slots, positions)
        rows = self.omni_condition(slots, positions) + self.embed_frames(codes)
        at_speaker = (positions == history.speaker_row[slots])[:, None]
        return rows + torch.where(at_speaker, history.speaker[slots].to(rows.dtype), 0)

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H]."""
        ids = self.history.text_at(slots, positions)
        if not self._markers.is_known:
            self._markers.keep(self._project, ids.device)
        return self._markers.rows(ids, self._project)

    def _project(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.text_projection(self.text_embedding(ids))
        return rows

    def omni_end(self, slot: int) -> None:
        """Forget nothing: the next `omni_begin` of the slot overwrites whatever can be read."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        self._markers.forget()  # first: a load that fails may have changed weights, too
        views = self.code_predictor.checkpoint_views()
        loaded = TalkerWeights(self, views, self.config.num_hidden_layers).load(weights)
        self.code_predictor.finish_loading()
        return loaded


class _Markers:
    """The projected rows of the marks around a text: begin, end, and the padding that most rows after a text read (TT-21).

    They are projected once, in the projection's own dtype, and again when weights have been loaded. So a mark's row is the same
    whoever shares the step, and a step on a CPU in which every row reads a mark projects nothing.
    """

    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids = ids
        self._table: Tensor | None = None
        self._known = torch.empty(0)

    @property
    def is_known(self) -> bool:
        """Whether the rows are there."""
        return self._table is not None

    def forget(self) -> None:
        """Forget the rows: the weights they came from are gone."""
        self._table = None

    def keep(self, project: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """Project the marks."""
        self._known = torch.tensor(self._ids, dtype=torch.int32, device=device)
        self._table = project(self._known)

    def rows(self, ids: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows [T, H] of text ids [T], those of marks from the table."""
        assert self._table is not None
        same = ids[:, None] == self._known
        marked = self._table[same.to(torch.int8).argmax(1)]
        is_mark = same.any(1)
        if ids.device.type == "cpu" and bool(is_mark.all()):  # elsewhere asking would wait for the device
            return marked
        return torch.where(is_mark[:, None], marked, project(ids))
