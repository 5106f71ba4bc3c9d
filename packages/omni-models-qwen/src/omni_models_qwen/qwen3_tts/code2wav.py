"""The Code2Wav stage of Qwen3-TTS: chunks of codes become chunks of audio. Runs in the stage's own process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from omni_core.errors import RequestError
from omni_core.modelkit.codec_stage import CodecStage, payload_rows
from omni_core.payload import Payload
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.codec_decoder import CodecDecoder
from omni_models_qwen.qwen3_tts.codec_flow import CodecState
from omni_models_qwen.qwen3_tts.pipeline import CODEC_FOLDER
from omni_models_qwen.talking.decoding import decoder_device, decoder_dtype, edge_options
from omni_models_qwen.talking.options import own_options


class Qwen3TTSCode2Wav(CodecStage):
    """Decode codes as they come, with a state for each request, so that the joined chunks are the one-shot decode.

    A payload has `codes` [n, 16]. A request's first one may have `ref_codes` [m, 16], the reference that a cloned voice
    continues: they go through the decoder before the codes, and the m frames of audio they would make are left out.
    `ref_total`, the length of the reference before it was shortened to m frames, changes nothing here. The talker's process may
    have made the `audio` of the first of `codes` already: it is passed on as it is, and those frames only make the state.

    Args:
        decoder: The codec's decoder.
        max_batch: Most requests in one step; 0 is no limit of its own (TT-16).
        firsts_first: Whether first chunks go before the later ones of other requests.
    """

    def __init__(self, decoder: CodecDecoder, *, max_batch: int = 0, firsts_first: bool = True) -> None:
        self.decoder = decoder
        self.max_batch = max_batch
        self.firsts_first = firsts_first
        self.sample_rate = decoder.config.sample_rate
        self.channels = decoder.config.channels

    @classmethod
    def load(cls, stage: ResolvedStage) -> Qwen3TTSCode2Wav:
        """Load the codec's decoder from the stage's folder inside the checkpoint.

        Raises:
            ConfigError: A file is missing or damaged, its tensors are not this model's, or the dtype is not known.
        """
        folder = Path(stage.model) / (stage.topology.model_subdir or CODEC_FOLDER)
        options = edge_options(stage)
        return cls(
            CodecDecoder.load(folder, dtype=decoder_dtype(stage), device=decoder_device(stage)),
            max_batch=int(options.get("decode_batch_max_size") or 0),
            firsts_first=bool(own_options(stage).get("talker_stream_first_audio", True)),
        )

    def reload(self, stage: ResolvedStage) -> None:
        """Load the decoder again; what requests remember does not depend on the weights' place.

        Raises:
            ConfigError: As `load`.
        """
        self.decoder = type(self).load(stage).decoder

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> CodecState:
        """Return the state of a request that has made no audio."""
        return self.decoder.begin()

    def group(self, chunk: LightChunk) -> Hashable:
        """Return the chunk's numbers of frames to hear and of frames to be silent about: chunks of one size can be stacked."""
        frames, made = len(payload_rows(chunk.payload, "codes")), self._frames_made(chunk.payload)
        return frames - made, len(payload_rows(chunk.payload, "ref_codes")) + made

    def ready(self, payload: Payload) -> Mapping[str, Any] | None:
        """Return the audio that the talker's process made, with its codes."""
        made = self._frames_made(payload)
        return {"audio": payload["audio"], "codes": payload["codes"][:made].astype(np.int32)} if made else None

    @torch.inference_mode()
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's `audio` float32 [n * samples_per_frame, 1] and, to be looked at, its `codes` int32 [n, 16].

        A chunk whose audio came with it has neither: `ready` has passed them on.

        Raises:
            RequestError: Codes are not [n, 16] whole numbers inside the codebooks, or `audio` does not belong to them. No
                state has changed then.
        """
        packed, silent = self._pack(chunks)
        codes = packed[:, silent:]
        audio = self.decoder.decode(codes, [chunk.state for chunk in chunks], reference=packed[:, :silent])
        waves = audio.to("cpu", torch.float32).contiguous().numpy()
        shown = codes.to("cpu", torch.int32).numpy()
        results = []
        for chunk, wave, rows in zip(chunks, waves, shown, strict=True):
            is_passed_on = self._frames_made(chunk.payload) > 0 and not len(rows)
            results.append({} if is_passed_on else {"audio": wave, "codes": rows})
        return results

    def _pack(self, chunks: Sequence[LightChunk]) -> tuple[Tensor, int]:
        """Return all frames of a step [batch, frames, quantizers] in one transfer, and how many of them are not to be heard.

        Those come first: a reference, or frames whose audio there is. A chunk never has both (`talker_runners`).
        """
        rows = []
        for chunk in chunks:
            self._check_made(chunk)
            rows.append(np.concatenate((self._codes(chunk, "ref_codes"), self._codes(chunk, "codes"))))
        _, silent = cast("tuple[int, int]", self.group(chunks[0]))
        return torch.from_numpy(np.stack(rows)).to(self.decoder.device), silent

    def _frames_made(self, payload: Payload) -> int:
        """Return for how many frames a payload brings the audio; 0 where it is none that can be passed on."""
        audio, frame = payload.get("audio"), self.decoder.config.samples_per_frame
        if not isinstance(audio, np.ndarray) or audio.dtype != np.float32 or audio.shape[1:] != (self.channels,):
            return 0
        frames, rest = divmod(len(audio), frame)
        return frames if not rest and frames <= len(payload_rows(payload, "codes")) else 0

    def _check_made(self, chunk: LightChunk) -> None:
        if chunk.payload.get("audio") is None:
            return
        fault = None
        if not self._frames_made(chunk.payload):
            fault = f"is not float32 [frames * {self.decoder.config.samples_per_frame}, {self.channels}] of its own frames"
        elif chunk.payload.get("ref_codes") is not None:
            fault = "came with ref_codes, which have to be heard before it"
        elif chunk.state.frames:
            fault = "came after the first frames"
        if fault is not None:
            hint = "send the audio of the first frames with their codes, or codes alone"
            raise RequestError(f"audio {fault}", where=f"request {chunk.request_id}", hint=hint)

    def _codes(self, chunk: LightChunk, key: str) -> np.ndarray[Any, Any]:
        config = self.decoder.config
        begun = bool(chunk.state.frames)
        return self.checked_codes(chunk, key, books=config.num_quantizers, size=config.codebook_size, begun=begun)
