"""A tiny codec with random weights: the files and tensor names of the released ones, in less than a megabyte.

It makes noise as loud as speech. Its windows are short, so that a second or two of audio is longer than all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, write_json, write_tensors
from omni_models_moss.checkpoint import CODEBOOK_SIZE

SAMPLE_RATE = 48000
SAMPLES_PER_FRAME = 3840
NUM_QUANTIZERS = 12
_LOUDNESS = 0.0175
"""Factor of the last projection; makes the audio's rms that of speech, about 0.07."""


def _transformer(inputs: int, outputs: int, context_s: float) -> dict[str, Any]:
    return {
        "module_type": "Transformer",
        "input_dimension": inputs,
        "output_dimension": outputs,
        "d_model": 32,
        "num_heads": 2,
        "num_layers": 1,
        "dim_feedforward": 64,
        "causal": True,
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "max_period": 10000,
        "gating": "none",
        "layer_scale": 0.01,
        "conv_layout": True,
        "context_duration": context_s,
    }


def _patch(size: int) -> dict[str, Any]:
    return {"module_type": "PatchedPretransform", "patch_size": size}


def _config(sample_rate: int, samples_per_frame: int, channels: int, num_quantizers: int) -> dict[str, Any]:
    """Return config.json of a tiny codec; `channels` is a part of it where there are two, as in the released ones."""
    first = samples_per_frame * channels // 32
    named = {"number_channels": channels, "enable_channel_interleave": True} if channels > 1 else {}
    return {
        "model_type": "moss-audio-tokenizer",
        "architectures": ["MossAudioTokenizerModel"],
        "sampling_rate": sample_rate,
        "downsample_rate": samples_per_frame,
        **named,
        "causal_transformer_context_duration": 10.0,
        "encoder_kwargs": [
            _patch(first),
            _transformer(first, 16, 0.1),
            _patch(2),
            _transformer(32, 16, 0.2),
            _patch(4),
            _transformer(64, 16, 0.4),
            _patch(4),
            _transformer(64, 24, 0.8),
        ],
        "decoder_kwargs": [
            _transformer(24, 64, 0.8),
            _patch(4),
            _transformer(16, 64, 0.4),
            _patch(4),
            _transformer(16, 32, 0.2),
            _patch(2),
            _transformer(16, first, 0.1),
            _patch(first),
        ],
        "quantizer_kwargs": {
            "input_dim": 24,
            "rvq_dim": 16,
            "output_dim": 24,
            "num_quantizers": num_quantizers,
            "codebook_size": CODEBOOK_SIZE,
            "codebook_dim": 8,
            "quantizer_type": "rlfq",
        },
    }


CONFIG = _config(SAMPLE_RATE, SAMPLES_PER_FRAME, 2, NUM_QUANTIZERS)
"""config.json of the tiny codec v2, which Local has."""
NANO_CONFIG = _config(SAMPLE_RATE, SAMPLES_PER_FRAME, 2, 16)
"""Of Nano's codec."""
V1_CONFIG = _config(24000, 1920, 1, 32)
"""Of codec v1, which the others have."""


def write_codec(folder: Path, seed: int, config: Mapping[str, Any] = CONFIG) -> None:
    """Write the codec's config.json and model.safetensors; equal seeds give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        seed: Of the weights.
        config: Which of the codecs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    tensors = dict(_stack("encoder", config["encoder_kwargs"], 1.0))
    tensors |= _stack("decoder", config["decoder_kwargs"], _LOUDNESS)
    tensors |= _quantizer(config["quantizer_kwargs"])
    write_tensors(folder / "model.safetensors", tensors, seed=seed, dtype="F32")


def _stack(name: str, parts: list[dict[str, Any]], gain: float) -> Iterator[tuple[str, Drawn]]:
    """Return the tensors of the encoder or the decoder, whose last projection has a gain."""
    last = max(index for index, part in enumerate(parts) if part["module_type"] == "Transformer")
    for index, part in enumerate(parts):
        if part["module_type"] == "Transformer":
            width, begin = part["d_model"], f"{name}.{index}"
            yield f"{begin}.input_proj.weight", Drawn.product(width, part["input_dimension"])
            for layer in range(part["num_layers"]):
                yield from _layer(f"{begin}.transformer.layers.{layer}", width, part["dim_feedforward"])
            scaled = gain if index == last else 1.0
            yield f"{begin}.output_proj.weight", Drawn.product(part["output_dimension"], width, gain=scaled)


def _layer(name: str, width: int, inner: int) -> Iterator[tuple[str, Drawn]]:
    for number in (1, 2):
        yield f"{name}.norm{number}.weight", Drawn.norm(width)
        yield f"{name}.norm{number}.bias", Drawn.bias(width)
        yield f"{name}.layer_scale_{number}.scale", Drawn.norm(width, gain=0.5)
    # With a gain, attention chooses instead of taking means, so that a wrong position or window is heard.
    yield f"{name}.self_attn.in_proj.weight", Drawn.product(3 * width, width, gain=2.0)
    yield f"{name}.self_attn.out_proj.weight", Drawn.product(width, width)
    yield f"{name}.ffn.0.weight", Drawn.product(inner, width)
    yield f"{name}.ffn.2.weight", Drawn.product(width, inner)


def _quantizer(sizes: Mapping[str, Any]) -> Iterator[tuple[str, Drawn]]:
    yield from _projection("quantizer.input_proj", sizes["rvq_dim"], sizes["input_dim"])
    yield from _projection("quantizer.output_proj", sizes["output_dim"], sizes["rvq_dim"])
    for level in range(sizes["num_quantizers"]):
        name = f"quantizer.quantizers.{level}"
        yield f"{name}.codebook.weight", Drawn.table(sizes["codebook_size"], sizes["codebook_dim"])
        yield from _projection(f"{name}.in_proj", sizes["codebook_dim"], sizes["rvq_dim"])
        yield from _projection(f"{name}.out_proj", sizes["rvq_dim"], sizes["codebook_dim"])


def _projection(name: str, rows: int, columns: int) -> Iterator[tuple[str, Drawn]]:
    """Return a projection whose rows are stored as length and direction."""
    yield f"{name}.parametrizations.weight.original0", Drawn((rows, 1, 1), center=1.0, spread=0.1)
    yield f"{name}.parametrizations.weight.original1", Drawn.table(rows, columns, 1)
    yield f"{name}.bias", Drawn.bias(rows)
