"""What the talkers have in common: rows by slot and position around a backbone of vLLM's layers. Engine core.

A row is a text id and the codes of a frame. Rows follow from `RowHistory`, so any position can be computed again at any time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from vllm.config import VllmConfig

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.modelkit.frame_talker import FrameStep, FrameTalker
from omni_core.modelkit.history import RowHistory
from omni_core.payload import Payload
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.seen import SeenCodes


def frame_capabilities(
    num_codes: int,
    sampling: MtpSampling,
    token_sampling: Mapping[str, Any],
    *,
    steps: int | None = None,
    constrains: bool = False,
) -> ModelCapabilities:
    """Return what a talker of the family declares.

    Args:
        num_codes: The most codes of a frame.
        sampling: How codes are chosen where a request says nothing.
        token_sampling: How the token beside them is chosen.
        steps: How many of the codes are drawn beside the token; None for all.
        constrains: Whether the talker has `omni_constrain`.
    """
    return ModelCapabilities(
        computes_inputs=True,
        cacheable_prompts=True,
        constrains_sampling=constrains,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=num_codes,
            accepts_req_infos=True,
            accepts_slots=True,
            accepts_positions=True,
            penalises_repetition=True,
            token_sampling=token_sampling,
            sample_uniforms=SampleUniforms(num_codes if steps is None else steps, CODEBOOK_SIZE),
            sampling=sampling,
        ),
    )


class MossTalker(FrameTalker):
    """A backbone that reads rows. Subclasses set `model`, call `remember`, and say how frames are embedded and made."""

    packed_modules_mapping = {  # noqa: RUF012 (vLLM reads a plain dict)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    seen: SeenCodes | None

    def remember(self, vllm_config: VllmConfig, num_codes: int, text: int, *, counts_codes: bool) -> None:
        """Make room for the rows of all requests.

        Args:
            vllm_config: How many requests, and how long.
            num_codes: Codes of a row.
            text: Text id of the rows whose text is not given.
            counts_codes: Whether a repetition penalty counts the codes of all frames that a request has made (`seen`).
        """
        self.slots = vllm_config.scheduler_config.max_num_seqs
        positions = vllm_config.model_config.max_model_len + 1
        self.history = RowHistory(slots=self.slots, positions=positions, num_codes=num_codes, text=text)
        self.seen = SeenCodes(self.slots, num_codes, CODEBOOK_SIZE) if counts_codes else None
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    @abstractmethod
    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [B, Q] as [B, H]."""

    def next_rows(self, step: FrameStep, codes: Tensor) -> Tensor:
        """Return the rows [B, H] that read these frames."""
        return step.conditioning + self.embed_codes(codes)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take the rows that the input processor made for a request."""
        self.history.begin(slot, inputs["text_ids"], inputs["codes"])
        if self.seen is not None:
            self.seen.begin(slot)

    def omni_embed(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the rows at these positions [T, H]."""
        return self.omni_condition(slots, positions) + self.embed_codes(self.history.codes_at(slots, positions))

    def omni_condition(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text side of the rows at these positions [B, H]."""
        return self.embed_input_ids(self.history.text_at(slots, positions))

    def omni_record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep frames as the codes of the rows that read them, and as what a repetition penalty counts."""
        super().omni_record(slots, positions, codes)
        if self.seen is not None:
            self.seen.record(slots, codes)

    def omni_end(self, slot: int) -> None:
        """Forget nothing: the next `omni_begin` of the slot overwrites whatever can be read."""

    def seen_by(self, step: FrameStep) -> Tensor | None:
        """Return the codes that each row's frames have had, bool [B, Q, codebook size], None where no row has a penalty."""
        assert self.seen is not None
        return self.seen.of(step.slots, step.sampling)
