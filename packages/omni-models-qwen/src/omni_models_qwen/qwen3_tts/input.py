"""The input processor of the talker, in its stage process: text becomes ids, a reference becomes codes and an embedding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_core.modelkit.cache import BoundedCache
from omni_core.modelkit.tokenizer import TextTokenizer
from omni_core.payload import Payload
from omni_core.runner import EngineInput
from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint
from omni_models_qwen.qwen3_tts.prompt import (
    PromptTokens,
    RowPlan,
    assistant_text,
    instruction_text,
    plan_rows,
    reference_text,
)
from omni_models_qwen.qwen3_tts.speech import codec_facts
from omni_models_qwen.talking.options import own_options

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage
    from omni_models_qwen.qwen3_tts.reference import ReferenceEncoder, ReferenceVoice

_CACHE_ENTRIES = 1024
"""TT-20; a reference is 30 s at most, so an entry has at most about 60 KB."""


class Qwen3TTSInput:
    """Turn the inputs that `Qwen3TTSSpeech` prepared into the talker's prompt."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._checkpoint = Checkpoint.of_stage(stage)
        self._tokenizer = TextTokenizer.load(stage.model)
        facts = codec_facts(self._checkpoint)
        self._frame_s = facts["decode_upsample_rate"] / facts["output_sample_rate"]
        options = stage.outputs[0].stream if stage.outputs else own_options(stage)
        self._voices: BoundedCache[ReferenceVoice] = BoundedCache(
            int(options.get("ref_audio_artifact_cache_max_entries", _CACHE_ENTRIES))
        )
        self._encoder = _load_encoder(stage.model) if self._checkpoint.speaker_width is not None else None

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input: placeholders for ids, and the plan of the rows.

        Raises:
            RequestError: The reference cannot be used, or there is no text to speak.
        """
        voice = self._reference_voice(payload)
        codes = None if voice is None else voice.codes
        embedding = payload.get("speaker_embedding") if voice is None else voice.embedding
        plan = self._plan(payload, codes, embedding is not None)
        # vLLM's repetition penalty counts prompt ids. Codec pad is suppressed anyway, so penalising it does no harm.
        ids = [self._checkpoint.codec.pad] * plan.rows
        inputs: dict[str, Any] = {"text_ids": plan.text_ids, "codes": plan.codes, "speaker_row": plan.speaker_row}
        if embedding is not None:
            inputs["speaker"] = np.asarray(embedding, dtype=np.float32)
        handoff = {
            "num_codes": self._checkpoint.num_codes,
            "ref_codes": codes,
            "initial_codec_chunk_frames": payload.get("initial_codec_chunk_frames"),
            "frame_s": self._frame_s,
        }
        return EngineInput(prompt_token_ids=ids, model_inputs=inputs, handoff=handoff)

    def _plan(self, payload: Payload, codes: np.ndarray[Any, Any] | None, speaker: bool) -> RowPlan:
        encode = self._tokenizer.encode
        instructions = payload.get("instructions")
        tokens = PromptTokens(
            text=encode(assistant_text(payload["text"])),
            instructions=encode(instruction_text(instructions)) if instructions else (),
            reference=encode(reference_text(payload["ref_text"])) if codes is not None else (),
        )
        voice = payload.get("voice")
        return plan_rows(
            self._checkpoint,
            tokens,
            language_id=self._checkpoint.language_id(payload["language"], voice),
            voice_id=None if voice is None else self._checkpoint.voice_id(voice),
            speaker_embedding=speaker,
            reference_codes=codes,
            whole_text=bool(payload["non_streaming_mode"]),
        )

    def _reference_voice(self, payload: Payload) -> ReferenceVoice | None:
        samples = payload.get("ref_audio")
        if samples is None or self._encoder is None:
            return None
        encoder, rate = self._encoder, int(payload["ref_sample_rate"])
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        with_codes = not payload["x_vector_only"]
        key = (hashlib.sha256(samples.data).digest(), rate, with_codes)
        return self._voices.get(key, lambda: encoder.encode(samples, rate, with_codes=with_codes))


def _load_encoder(folder: str) -> ReferenceEncoder:
    from omni_models_qwen.qwen3_tts.reference import ReferenceEncoder  # torch and transformers: only for cloning checkpoints

    return ReferenceEncoder.load(folder)
