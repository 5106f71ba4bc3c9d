"""The codec stage of MOSS-TTS: chunks of codes become chunks of audio. Runs in the stage's own process."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from omni_core.errors import ConfigError
from omni_core.modelkit.codec_stage import CodecStage, payload_rows, stage_device, stage_dtype
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_models_moss.codec.decoder import CodecDecoder
from omni_models_moss.codec.location import find_codec
from omni_models_moss.codec.memory import Stream
from omni_models_moss.overrides import OTHER_CODECS

logger = logging.getLogger(__name__)


class MossTTSCodecDecoder(CodecStage):
    """Decode codes as they come, with a stream for each request, so that the joined chunks are the one-shot decode.

    A payload has `codes` [frames, n], of the first n codebooks. A request's first one may have `ref_codes` [frames, n], the
    recording that the speech continues: they go through the decoder before the codes, and their audio is left out.

    Args:
        decoder: The codec's decoder.
        dispatch_max_rows: See `LightModel`; the edge's `codec_dispatch_max_rows` (MO-02).
        dispatch_max_wait_ms: See `LightModel`; the edge's `codec_dispatch_max_wait_ms`.
    """

    def __init__(self, decoder: CodecDecoder, *, dispatch_max_rows: int = 0, dispatch_max_wait_ms: float = 0.0) -> None:
        self.decoder = decoder
        self.dispatch_max_rows = dispatch_max_rows
        self.dispatch_max_wait_ms = dispatch_max_wait_ms
        self.sample_rate = decoder.config.sample_rate
        self.channels = decoder.config.channels

    @classmethod
    def load(cls, stage: ResolvedStage) -> MossTTSCodecDecoder:
        """Load the decoder of the stage's codec (see `codec.location`).

        Raises:
            ConfigError: A file is missing or damaged, its tensors are not this model's, or the dtype is not known.
            DependencyError: The codec's repository cannot be fetched.
        """
        if unused := _without_effect(stage):
            logger.info(
                "stage %s: %s: no effect on this codec, which runs without captured graphs", stage.name, ", ".join(unused)
            )
        options = stage.inputs[0].stream if stage.inputs else {}
        return cls(
            _load_decoder(stage),
            dispatch_max_rows=int(options.get("codec_dispatch_max_rows", 0)),
            dispatch_max_wait_ms=float(options.get("codec_dispatch_max_wait_ms", 0)),
        )

    def reload(self, stage: ResolvedStage) -> None:
        """Read the weights again; requests go on with their streams.

        Raises:
            ConfigError: The checkpoint cannot be read, or is another codec now.
        """
        found = _load_decoder(stage)
        if found.config != self.decoder.config:
            raise ConfigError(
                "the codec has other sizes than the one that runs", where=f"stage {stage.name}", hint="restart the stage"
            )
        found.take_over(self.decoder)
        self.decoder = found

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Stream:
        """Return the stream of a request that has made no audio."""
        return self.decoder.begin()

    def group(self, chunk: LightChunk) -> Hashable:
        """Return the shapes of the chunk's codes and reference: chunks of equal shapes can be stacked."""
        return payload_rows(chunk.payload, "codes").shape, payload_rows(chunk.payload, "ref_codes").shape

    @torch.inference_mode()
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's `audio` float32 [frames * samples_per_frame, channels] and, to be looked at, its `codes` int32.

        Raises:
            RequestError: Codes are not [frames, n] whole numbers inside the codebooks. No stream has changed then.
        """
        codes = torch.stack([self._codes(chunk, "codes") for chunk in chunks])
        reference = torch.stack([self._codes(chunk, "ref_codes") for chunk in chunks])
        audio = self.decoder.decode(codes, [chunk.state for chunk in chunks], reference=reference)
        waves = audio.to("cpu").contiguous().numpy()
        return [{"audio": wave, "codes": rows.to(torch.int32).numpy()} for wave, rows in zip(waves, codes, strict=True)]

    @torch.inference_mode()
    def end(self, state: Stream) -> None:
        """Free the stream's memory."""
        self.decoder.end(state)

    def _codes(self, chunk: LightChunk, key: str) -> Tensor:
        config = self.decoder.config
        return torch.from_numpy(
            self.checked_codes(
                chunk,
                key,
                books=config.num_quantizers,
                size=config.codebook_size,
                fewer=True,
                begun=chunk.state.frames > 0,
            )
        )


def _without_effect(stage: ResolvedStage) -> list[str]:
    """Return the settings of a stage that are meant for codecs of another make."""
    given = {**stage.engine_args, **stage.config_overrides}
    return [name for name in (*OTHER_CODECS, "compilation_config") if given.get(name)]


def _load_decoder(stage: ResolvedStage) -> CodecDecoder:
    return CodecDecoder.load(find_codec(stage), device=stage_device(stage), dtype=stage_dtype(stage))
