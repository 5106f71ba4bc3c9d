"""Sizes of the codec, read from its config.json: what its encoder and its decoder are made of, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_core.modelkit.config_reader import ConfigReader

_CONTEXT_S = 10.0
"""Seconds that a transformer looks back where the checkpoint does not say."""
_ONLY = {"norm": "layer_norm", "positional_embedding": "rope", "gating": "none", "causal": True}
"""What the released codecs have in common; another value would be another architecture."""
_QUANTIZERS = ("rlfq", "random_prefix_rlfq")
"""Two ways to train the same residual quantizer."""


@dataclass(frozen=True)
class Patch:
    """A change of rate by reshaping alone: `size` columns become one (encoder), or one becomes `size` (decoder)."""

    index: int
    size: int


@dataclass(frozen=True)
class TransformerSizes:
    """A transformer at one rate."""

    index: int
    """Its place in the list, which is part of its tensors' names."""
    inputs: int
    outputs: int
    width: int
    heads: int
    layers: int
    inner: int
    window: int
    """Columns that a column attends to, itself included."""
    rate: int
    """Columns for each frame of codes."""
    max_period: float


Part = Patch | TransformerSizes


@dataclass(frozen=True, kw_only=True)
class CodecConfig:
    """The sizes of one codec."""

    sample_rate: int
    channels: int
    """Channels of the audio; inside, they take turns in one stream: L, R, L, R."""
    samples_per_frame: int
    """Samples of each channel that a frame of codes becomes."""
    encoder: tuple[Part, ...]
    decoder: tuple[Part, ...]
    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    residual_dim: int
    """Width of what the quantizers share out among them."""
    latent_in: int
    """Width of a frame as it leaves the encoder."""
    latent_out: int
    """Width of a frame as it enters the decoder."""
    compute_dtype: str = "float32"
    """The type that the checkpoint asks to compute in."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], *, where: str) -> CodecConfig:
        """Return the sizes in a codec's config.json.

        Raises:
            ConfigError: A key is missing or has another type, the sizes contradict each other, or the architecture is another.
        """
        read = ConfigReader(raw, where, "MOSS-Audio-Tokenizer")
        quantizer = read.section("quantizer_kwargs")
        kind = quantizer.raw.get("quantizer_type", raw.get("quantizer_type", "rlfq"))
        if kind not in _QUANTIZERS:
            raise read.fault(f"quantizer_type {kind!r} is not known, only {' and '.join(_QUANTIZERS)}")
        sample_rate = read.count("sample_rate" if "sampling_rate" not in raw else "sampling_rate")
        samples_per_frame = read.count("downsample_rate")
        listed = (read.take("encoder_kwargs", list), _decoder_parts(read))
        total, back = (math.prod(_patch_sizes(parts)) for parts in listed)
        channels = read.count("number_channels", max(total // samples_per_frame, 1))
        if not total == back == samples_per_frame * channels:
            raise read.fault(
                f"the patches multiply to {total} and {back}, not to {samples_per_frame} samples of {channels} channels"
            )
        if channels > 1 and not raw.get("enable_channel_interleave", True):
            raise read.fault(f"enable_channel_interleave is off, but there are {channels} channels")
        frame_rate = sample_rate / samples_per_frame
        context_s = read.positive("causal_transformer_context_duration", _CONTEXT_S)
        dtype = str(raw.get("compute_dtype") or raw.get("codec_compute_dtype") or "float32")
        if dtype not in _DTYPES:
            raise read.fault(f"compute_dtype {dtype!r} is not known, only {', '.join(_DTYPES)}")
        encoder = _parts(listed[0], read, "encoder_kwargs", total, frame_rate, context_s)
        decoder = _parts(listed[1], read, "decoder_kwargs", 1, frame_rate, context_s)
        config = cls(
            sample_rate=sample_rate,
            channels=channels,
            samples_per_frame=samples_per_frame,
            encoder=encoder,
            decoder=decoder,
            num_quantizers=quantizer.count("num_quantizers"),
            codebook_size=quantizer.count("codebook_size"),
            codebook_dim=quantizer.count("codebook_dim"),
            residual_dim=quantizer.count("rvq_dim"),
            latent_in=quantizer.count("input_dim"),
            latent_out=quantizer.count("output_dim"),
            compute_dtype=_DTYPES[dtype],
        )
        _check_widths(encoder, 1, config.latent_in, is_encoder=True, read=read)
        _check_widths(decoder, config.latent_out, 1, is_encoder=False, read=read)
        return config


_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}


def _patch_sizes(listed: Sequence[Any]) -> Iterator[int]:
    """Return the sizes of the patches; what is wrong with a part is said when it is read."""
    sizes = (part.get("patch_size", 1) for part in listed if isinstance(part, Mapping))
    return (size for size in sizes if isinstance(size, int))


def _decoder_parts(read: ConfigReader) -> list[Any]:
    """Return the decoder's parts; some files list them from the audio inwards, with inputs and outputs exchanged."""
    if read.raw.get("decoder_kwargs") is not None or read.raw.get("reversed_decoder_kwargs") is None:
        found: list[Any] = read.take("decoder_kwargs", list)
        return found
    turned = []
    for part in reversed(read.take("reversed_decoder_kwargs", list)):
        if not isinstance(part, Mapping) or part.get("module_type") != "Transformer":
            turned.append(part)
            continue
        exchanged = {"input_dimension": part.get("output_dimension"), "output_dimension": part.get("input_dimension")}
        turned.append({**part, **exchanged})
    return turned


def _parts(
    listed: Sequence[Any], read: ConfigReader, name: str, rate: int, frame_rate: float, context_s: float
) -> tuple[Part, ...]:
    """Return the parts of the encoder, which begins with `rate` columns for a frame, or of the decoder, which begins with 1."""
    is_encoder = name == "encoder_kwargs"
    found: list[Part] = []
    for index, raw in enumerate(listed):
        part = ConfigReader(raw if isinstance(raw, Mapping) else {}, read.where, read.model, f"{name}[{index}].")
        kind = part.raw.get("module_type")
        if kind == "PatchedPretransform":
            size = part.count("patch_size")
            rate = rate // size if is_encoder else rate * size
            found.append(Patch(index, size))
        elif kind == "Transformer":
            seconds = part.positive("context_duration", context_s)
            found.append(_transformer(part, index, rate, int(frame_rate * rate * seconds)))
        else:
            raise read.fault(f"{name}[{index}] is of the unknown type {kind!r}")
    return tuple(found)


def _transformer(part: ConfigReader, index: int, rate: int, window: int) -> TransformerSizes:
    for name, value in _ONLY.items():
        if part.raw.get(name, value) != value:
            raise part.fault(f"{name} is {part.raw[name]!r}, but only {value!r} is known")
    width, heads = part.count("d_model"), part.count("num_heads")
    if width % (2 * heads) or window < 1:
        raise part.fault(f"num_heads: {heads} heads of a width of {width} with a window of {window} columns cannot be")
    return TransformerSizes(
        index=index,
        inputs=part.count("input_dimension"),
        outputs=part.count("output_dimension"),
        width=width,
        heads=heads,
        layers=part.count("num_layers"),
        inner=part.count("dim_feedforward"),
        window=window,
        rate=rate,
        max_period=part.positive("max_period", 10000),
    )


def _check_widths(parts: Sequence[Part], begin: int, end: int, *, is_encoder: bool, read: ConfigReader) -> None:
    """Check that each part takes what the one before it makes."""
    width = begin
    for part in parts:
        if isinstance(part, TransformerSizes):
            if part.inputs != width:
                raise read.fault(f"the transformer {part.index} takes {part.inputs} values a column, but gets {width}")
            width = part.outputs
        elif is_encoder:
            width *= part.size
        elif width % part.size:
            raise read.fault(f"the patch {part.index} cannot share {width} values among {part.size} columns")
        else:
            width //= part.size
    if width != end:
        raise read.fault(f"the {'encoder' if is_encoder else 'decoder'} ends with {width} values a column instead of {end}")
