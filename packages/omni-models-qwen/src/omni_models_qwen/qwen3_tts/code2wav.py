"""The Code2Wav stage of Qwen3-TTS: chunks of codes become chunks of audio. Runs in the stage's own process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omni_core.errors import ConfigError, RequestError
from omni_core.payload import Payload
from omni_core.runner import LightChunk, LightModel
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.codec_decoder import CodecDecoder
from omni_models_qwen.qwen3_tts.codec_flow import CodecState

CODEC_FOLDER = "speech_tokenizer"

_DTYPES = {
    "auto": torch.float32,  # the codec's file is float32
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
_DEVICES = {"rocm": "cuda"}
"""Platforms whose name in torch is another one."""


class Qwen3TTSCode2Wav(LightModel):
    """Decode codes as they come, with a state for each request, so that the joined chunks are the one-shot decode.

    A payload has `codes` [n, 16]. A request's first one may have `ref_codes` [m, 16], the reference that a cloned voice
    continues: they go through the decoder before the codes, and the m frames of audio they would make are left out.
    `ref_total`, the length of the reference before it was shortened to m frames, changes nothing here.
    """

    def __init__(self, decoder: CodecDecoder) -> None:
        self.decoder = decoder
        self.sample_rate = decoder.config.sample_rate
        self.channels = decoder.config.channels

    @classmethod
    def load(cls, stage: ResolvedStage) -> Qwen3TTSCode2Wav:
        """Load the codec's decoder from the stage's folder inside the checkpoint.

        Raises:
            ConfigError: A file is missing or damaged, its tensors are not this model's, or the dtype is not known.
        """
        name = str(stage.engine_args.get("dtype") or "auto").removeprefix("torch.")
        if name not in _DTYPES:
            raise ConfigError(
                f"stage {stage.name} cannot use dtype {name!r}", where="dtype", hint=f"choose one of {', '.join(_DTYPES)}"
            )
        folder = Path(stage.model) / (stage.topology.model_subdir or CODEC_FOLDER)
        device = _DEVICES.get(stage.platform, stage.platform)
        return cls(CodecDecoder.load(folder, device=device, dtype=_DTYPES[name]))

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> CodecState:
        """Return the state of a request that has made no audio."""
        return self.decoder.begin()

    def group(self, chunk: LightChunk) -> Hashable:
        """Return the chunk's numbers of frames and of reference frames: chunks of one size can be stacked."""
        return len(_rows(chunk.payload, "codes")), len(_rows(chunk.payload, "ref_codes"))

    @torch.inference_mode()
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's `audio` float32 [n * samples_per_frame, 1] and, to be looked at, its `codes` int32 [n, 16].

        Raises:
            RequestError: Codes are not [n, 16] whole numbers inside the codebooks. No state has changed then.
        """
        codes = torch.stack([self._codes(chunk, "codes") for chunk in chunks])
        reference = torch.stack([self._codes(chunk, "ref_codes") for chunk in chunks])
        audio = self.decoder.decode(codes, [chunk.state for chunk in chunks], reference=reference)
        waves = audio.to("cpu", torch.float32).contiguous().numpy()
        return [{"audio": wave, "codes": rows.to(torch.int32).numpy()} for wave, rows in zip(waves, codes, strict=True)]

    def _codes(self, chunk: LightChunk, key: str) -> Tensor:
        rows = _rows(chunk.payload, key)
        config = self.decoder.config
        where = f"request {chunk.request_id}"
        if rows.size == 0:
            return torch.zeros(0, config.num_quantizers, dtype=torch.int64)
        if rows.ndim != 2 or rows.shape[1] != config.num_quantizers or rows.dtype.kind not in "iu":
            raise RequestError(
                f"{key} must be whole numbers [frames, {config.num_quantizers}], not {rows.dtype} {list(rows.shape)}",
                where=where,
                hint="send one row for each frame",
            )
        if rows.min() < 0 or rows.max() >= config.codebook_size:
            raise RequestError(
                f"{key} holds ids from {rows.min()} to {rows.max()}, but the codebooks have {config.codebook_size} rows",
                where=where,
                hint=f"send codes from 0 to {config.codebook_size - 1}, without control ids",
            )
        if key == "ref_codes" and chunk.state.frames:
            raise RequestError("ref_codes came after the first frames", where=where, hint="send them with the first payload")
        return torch.from_numpy(rows.astype(np.int64))


def _rows(payload: Payload, key: str) -> np.ndarray[Any, Any]:
    """Return an array of the payload; one that is not there has no rows."""
    found = payload.get(key)
    return np.zeros((0, 0), np.int64) if found is None else np.atleast_1d(found)
