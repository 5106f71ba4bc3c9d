"""The Code2Wav stage of Qwen3-Omni: windows of codes become audio. Runs in the stage's own process.

The decoder is transformers'. The last samples of a window need the frames behind it, so that n frames give n * 1920 - 555
samples. Those 555 are made with the next window, which hears some of the frames before it again: nothing is missing in between,
and all windows together are as long as one decode of everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_core.errors import RequestError
from omni_core.modelkit.codec_stage import payload_rows
from omni_core.modelkit.config_reader import ConfigReader
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_omni.chat import MODEL
from omni_models_qwen.talking.decoding import TransformersStage, decoder_device, decoder_dtype, edge_options, filled

WHOLE_WINDOW = 300
"""Frames of a window where a payload does not say, as in the reference."""
_CONTEXT = 25

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Heard:
    """What a request remembers."""

    context: Ints
    """The last frames that were decoded [n, Q], as many as the next window hears again."""


class Qwen3OmniCode2Wav(TransformersStage):
    """Decode codes window by window, for many requests at once.

    A payload has `codes` [n, 16] and, where they were made for streaming, `windows`: how many frames are decoded at a time.
    Where it has none, windows are as large as the reference's.

    Args:
        decoder: transformers' decoder, loaded.
        context: Frames before a window that are decoded with it (`codec_left_context_frames`), at least 1.
        max_batch: Most requests in one step; 0 is no limit of its own.
    """

    firsts_first = True

    def __init__(self, decoder: Any, *, context: int = _CONTEXT, max_batch: int = 0) -> None:
        super().__init__(decoder)
        self.max_batch = max_batch
        self._context = max(context, 1)
        self._samples = int(decoder.total_upsample)

    @classmethod
    def load(cls, stage: ResolvedStage) -> Qwen3OmniCode2Wav:
        """Load the decoder from the checkpoint.

        Raises:
            ConfigError: A file is missing or damaged, its tensors are not this model's, or the dtype is not known.
        """
        options = edge_options(stage)
        return cls(
            _load_decoder(Path(stage.model), decoder_dtype(stage), decoder_device(stage)),
            context=int(options.get("codec_left_context_frames", _CONTEXT)),
            max_batch=int(options.get("decode_batch_max_size") or 0),
        )

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Heard:
        """Return the state of a request that has made no audio."""
        return Heard(np.zeros((0, self.model.config.num_quantizers), np.int64))

    def group(self, chunk: LightChunk) -> Hashable:
        """Return how many frames a chunk hears again and the sizes of its windows: chunks that agree in them can be stacked."""
        return len(chunk.state.context), self._windows(chunk)

    @torch.inference_mode()
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's `audio` float32 [samples, 1] and, to be looked at, its `codes` int32 [n, 16].

        Raises:
            RequestError: Codes are not [n, 16] whole numbers inside the codebooks, or the windows are not theirs. No state has
                changed then.
        """
        rows = [self._codes(chunk) for chunk in chunks]
        before, windows = cast("tuple[int, tuple[int, ...]]", self.group(chunks[0]))
        codes = np.stack([np.concatenate((chunk.state.context, own)) for chunk, own in zip(chunks, rows, strict=True)])
        waves, start = [np.zeros((len(chunks), 0), np.float32)], before
        for size in windows:
            heard = min(start, self._context)
            waves.append(self._decode(codes[:, start - heard : start + size], heard))
            start += size
        audio = np.concatenate(waves, axis=1)
        for chunk, own in zip(chunks, codes, strict=True):
            chunk.state.context = own[max(len(own) - self._context, 0) :]
        return [
            {"audio": wave[:, None], "codes": own.astype(np.int32)} if len(own) or chunk.final else {}
            for wave, own, chunk in zip(audio, rows, chunks, strict=True)
        ]

    def _decode(self, codes: Ints, heard: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the audio [B, samples] of codes [B, n, Q] whose first `heard` frames were decoded before.

        What a window lacks at its end is the beginning of what the next one adds.
        """
        packed = torch.from_numpy(codes).to(self.decoder.device).transpose(1, 2)
        wave: Tensor = self.model(packed)[:, 0]
        lacking = codes.shape[1] * self._samples - wave.shape[1]
        begin = heard * self._samples - lacking if heard else 0
        found: np.ndarray[Any, np.dtype[np.float32]] = wave[:, begin:].to("cpu", torch.float32).contiguous().numpy()
        return found

    def _windows(self, chunk: LightChunk) -> tuple[int, ...]:
        count = len(payload_rows(chunk.payload, "codes"))
        given = chunk.payload.get("windows")
        if given is None:
            whole, rest = divmod(count, WHOLE_WINDOW)
            return (WHOLE_WINDOW,) * whole + (rest,) * (rest > 0)
        sizes = tuple(int(size) for size in np.atleast_1d(given))
        if sum(sizes) != count or any(size < 1 for size in sizes):
            raise RequestError(
                f"windows of {list(sizes)} frames do not divide {count}",
                where=f"request {chunk.request_id}",
                hint="send sizes that add up to the number of frames",
            )
        return sizes

    def _codes(self, chunk: LightChunk) -> Ints:
        config = self.model.config
        return self.checked_codes(chunk, "codes", books=config.num_quantizers, size=config.codebook_size)


def _load_decoder(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Return transformers' decoder with a checkpoint's weights."""
    raw = ConfigReader.of_folder(folder, MODEL).section("code2wav_config").raw
    decoder = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**raw))
    return filled(decoder, folder, "code2wav.", device=device, dtype=dtype)
