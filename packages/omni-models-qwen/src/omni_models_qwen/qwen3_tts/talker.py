"""The talker of Qwen3-TTS on vLLM's layers; runs in the engine core of stage 0.

Each step reads one row (text beside the frame made last), samples codebook 0 by vLLM's own sampler, and lets the code
predictor complete the frame. Rows follow from `VoicedHistory`, so any position can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from omni_core.capabilities import MtpSampling
from omni_core.errors import ConfigError
from omni_core.payload import Payload
from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint
from omni_models_qwen.qwen3_tts.code_predictor import CodePredictor, PredictorConfig
from omni_models_qwen.qwen3_tts.history import VoicedHistory
from omni_models_qwen.qwen3_tts.prompt import NO_CODE
from omni_models_qwen.qwen3_tts.talker_weights import TalkerWeights


class Qwen3TTSTalker(nn.Module, SupportsLoRA):
    """Make frames of 16 codes from text."""

    mtp_output_key = ("codes", "audio")
    mtp_num_codes = 16
    mtp_accepts_req_infos = True
    mtp_sample_uniforms = True
    mtp_sample_steps = 15
    mtp_sample_vocab_size = 2048
    mtp_sampling_params = MtpSampling(do_sample=True, temperature=0.9, top_k=50, top_p=1.0)
    # Each row's settings are read on the host at every call, which a captured graph would freeze.
    mtp_graph_safe = False

    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads a plain dict)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    # Adapters are made for the whole checkpoint's model, where the talker is a part; they may change its backbone.
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"talker.": ""})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        raw = hf_config.talker_config
        facts = Checkpoint.from_config(hf_config.to_dict(), vllm_config.model_config.model)
        _check_frame(facts, type(self))
        self.config = hf_config.get_text_config()
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.codec_head = ParallelLMHead(
            facts.vocab_size, facts.hidden_size, prefix=maybe_prefix(prefix, "codec_head"), quant_config=None
        )
        self.logits_processor = LogitsProcessor(facts.vocab_size)
        self.text_embedding = VocabParallelEmbedding(raw.get("text_vocab_size", 151_936), raw.get("text_hidden_size", 2048))
        self.text_projection = _TextProjection(self.text_embedding.embedding_dim, facts.hidden_size)
        self._markers = _Markers((facts.text.tts_pad, facts.text.tts_bos, facts.text.tts_eos))
        self.code_predictor = CodePredictor(PredictorConfig.read(raw))
        self.history = VoicedHistory(
            slots=vllm_config.scheduler_config.max_num_seqs,
            positions=vllm_config.model_config.max_model_len + 1,
            num_codes=facts.num_codes,
            hidden=facts.hidden_size,
            text_pad=facts.text.tts_pad,
        )
        suppressed = torch.arange(facts.vocab_size) >= facts.codebook_size
        suppressed[facts.codec.eos] = False
        self.register_buffer("suppressed", suppressed, persistent=False)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of codebook-0 ids; rows proper come from `omni_embed`."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        """Return the normed hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [B, V] where only codes and the end of speech can win."""
        logits: Tensor | None = self.logits_processor(self.codec_head, hidden_states)
        return None if logits is None else logits.masked_fill_(self.suppressed, -torch.inf)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the plan that the input processor made for a request."""
        self.history.take(slot, inputs)

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        history = self.history
        codes = history.codes[slots, positions]
        rows = self.omni_condition(slots, positions) + self._embed_frames(codes)
        at_speaker = (positions == history.speaker_row[slots])[:, None]
        return rows + torch.where(at_speaker, history.speaker[slots].to(rows.dtype), 0)

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H]."""
        ids = self.history.text_ids[slots, positions]
        if not self._markers.is_known:
            self._markers.keep(self._project, ids.device)
        return self._markers.rows(ids, self._project)

    def _project(self, ids: Tensor) -> Tensor:
        return self.text_projection(self.text_embedding(ids))

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them."""
        self.history.record(slots, positions, codes)

    def omni_end(self, slot: int) -> None:
        """Forget nothing: the next `omni_begin` of the slot overwrites whatever can be read."""

    def mtp(
        self,
        token_ids: Tensor,
        embeds: Tensor,
        hidden: Tensor,
        conditioning: Tensor,
        *,
        req_infos: Sequence[MtpSampling] | None = None,
        uniforms: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the next rows [B, H] and the frames [B, 16] of the sampled codes 0.

        Args:
            token_ids: Sampled ids [B].
            embeds: Their embeddings [B, H].
            hidden: The hidden states they were sampled from [B, H].
            conditioning: The text side of the next rows [B, H].
            req_infos: How each row's other codes are chosen; None means the model's own settings.
            uniforms: Random numbers [B, 15, 2048].
        """
        sampling = req_infos if req_infos is not None else [self.mtp_sampling_params] * len(token_ids)
        rest = self.code_predictor(hidden, embeds, sampling, uniforms)
        codes = torch.cat([token_ids[:, None].to(rest.dtype), rest], dim=1)
        return embeds + self.code_predictor.embed(rest) + conditioning, codes

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Return the modules whose weights vLLM takes away while new ones come; `code_predictor` gets its own in place."""
        in_place = set(self.code_predictor.modules())
        return (module for module in super().modules(*args, **kwargs) if module not in in_place)

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

    def _embed_frames(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [T, 16]; NO_CODE adds nothing."""
        first = codes[:, 0]
        zeroth = self.model.embed_tokens(first.clamp_min(0))
        return torch.where((first != NO_CODE)[:, None], zeroth, 0) + self.code_predictor.embed(codes[:, 1:])


class _TextProjection(nn.Module):
    """Bring text embeddings to the talker's width."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_width, text_width)
        self.linear_fc2 = nn.Linear(text_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


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


def _check_frame(facts: Checkpoint, kind: type[Qwen3TTSTalker]) -> None:
    if facts.num_codes != kind.mtp_num_codes or facts.codebook_size != kind.mtp_sample_vocab_size:
        raise ConfigError(
            f"frames of {facts.num_codes} codes below {facts.codebook_size} are not supported",
            where=str(facts.folder / "config.json"),
            hint=f"use a 12 Hz checkpoint: {kind.mtp_num_codes} codes below {kind.mtp_sample_vocab_size}",
        )
