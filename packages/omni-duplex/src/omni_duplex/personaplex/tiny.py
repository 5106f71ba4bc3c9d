"""Building a tiny PersonaPlex checkpoint: the files and tensor names of the published one, in a few megabytes, random weights.

It speaks noise, and what it says depends on all that it hears: with codebooks of zeros, or with weights as small as a fresh
network's, it would answer everything alike. Its windows are short, so that a few seconds are longer than all of them.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError, DependencyError
from omni_core.modelkit.tiny_sentencepiece import write_model
from omni_core.modelkit.tiny_weights import Drawn, Tensors, under, write_tensors
from omni_duplex.personaplex.shape import CODEC, CODES, MODEL_TYPE, STREAMS, TEXT_TOKENIZER, VOICES, WEIGHTS

VARIANTS = ("default", "sixteen")
"""Depth weights for the agent's codes alone, or for those of both sides, as the published file has them."""
VOICE_NAMES = ("NATF2", "NATM1")
_VOICE_FRAMES = 10
_WORDS = ("\u2581hello", "\u2581yes", "\u2581no", "\u2581well", "\u2581system", "\u2581you", "<", ">", "\u2581")

_CODEC = {
    "hidden_size": 64,
    "num_filters": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "codebook_size": 64,
    "codebook_dim": 16,
    "vector_quantization_hidden_dimension": 16,
    "upsample_groups": 64,
    "sliding_window": 20,
}
_RATIOS = (8, 6, 5, 4)
_SIZES = {
    "text_pad": 3,
    "card": 64,
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "context": 96,
    "ffn": 96,
    "depth_dim": 32,
    "depth_layers": 2,
    "depth_heads": 2,
    "depth_ffn": 48,
    "silence": [5, 17, 29, 41, 53, 2, 14, 26],
    "sine": [7, 19, 31, 43, 55, 4, 16, 28],
    "codec": _CODEC,
}


def build_tiny(folder: Path, variant: str = VARIANTS[0], seed: int = 0) -> None:
    """Write a checkpoint.

    Raises:
        ConfigError: There is no such variant.
        DependencyError: torch is not installed, which writes the voices.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"there is no variant {variant!r}", hint=f"choose one of {', '.join(VARIANTS)}")
    folder.mkdir(parents=True, exist_ok=True)
    vocab = write_model(folder / TEXT_TOKENIZER, ("<unk>", "<s>", "</s>", "<pad>"), _WORDS)
    sizes = {**_SIZES, "text_vocab": vocab}
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, "sizes": sizes}, indent=2))
    steps = 2 * CODES if variant == "sixteen" else CODES
    write_tensors(folder / WEIGHTS, {**_temporal(sizes), **_depth(sizes, steps)}, seed=seed, dtype="F32")
    write_tensors(folder / CODEC, _codec(), seed=seed + 1, dtype="F32")
    _write_voices(folder / VOICES, sizes, seed)


def _layer(size: int, inner: int, steps: int | None = None) -> Tensors:
    """Return a layer of the network, or one of its depth part with own weights for each step."""
    times = steps or 1
    found = {
        "self_attn.in_proj_weight": Drawn(shape=(3 * size * times, size), spread=size**-0.5),
        "self_attn.out_proj.weight": Drawn(shape=(size * times, size), spread=size**-0.5),
        "norm1.alpha": _norm(size),
        "norm2.alpha": _norm(size),
    }
    for step in range(times):
        gating = "gating" if steps is None else f"gating.{step}"
        found[f"{gating}.linear_in.weight"] = Drawn.product(2 * inner, size)
        found[f"{gating}.linear_out.weight"] = Drawn.product(size, inner)
    return found


def _norm(size: int) -> Drawn:
    return Drawn((1, 1, size), center=1.0, spread=0.1)


def _temporal(sizes: Mapping[str, Any]) -> Tensors:
    dim, card, vocab = sizes["dim"], sizes["card"], sizes["text_vocab"]
    found: Tensors = {
        "text_emb.weight": Drawn.table(vocab + 1, dim),
        "text_linear.weight": Drawn.product(vocab, dim),
        "out_norm.alpha": _norm(dim),
    }
    for stream in range(STREAMS - 1):
        found[f"emb.{stream}.weight"] = Drawn.table(card + 1, dim)
    for number in range(sizes["layers"]):
        found |= under(f"transformer.layers.{number}", _layer(dim, sizes["ffn"]))
    return found


def _depth(sizes: Mapping[str, Any], steps: int) -> Tensors:
    size, card = sizes["depth_dim"], sizes["card"]
    found: Tensors = {"depformer_text_emb.weight": Drawn.table(sizes["text_vocab"] + 1, size)}
    for step in range(steps):
        found[f"depformer_in.{step}.weight"] = Drawn.product(size, sizes["dim"], gain=2.0)
        found[f"linears.{step}.weight"] = Drawn.product(card, size)
        if step:
            found[f"depformer_emb.{step - 1}.weight"] = Drawn.table(card + 1, size)
    for number in range(sizes["depth_layers"]):
        found |= under(f"depformer.layers.{number}", _layer(size, sizes["depth_ffn"], steps))
    return found


def _codec() -> Tensors:
    hidden, filters = _CODEC["hidden_size"], _CODEC["num_filters"]
    widest = filters * 2 ** len(_RATIOS)
    # Louder than a fresh network: what it hears then decides its codes, and its codes what is heard.
    found = _convolution("encoder.model.0", filters, 1, 7, gain=4.0)
    found |= _convolution("encoder.model.14", hidden, widest, 3)
    found |= _convolution("decoder.model.0", widest, hidden, 7)
    found |= _convolution("decoder.model.14", 1, filters, 3, gain=0.025)
    for number, ratio in enumerate(reversed(_RATIOS)):
        size, place = filters * 2**number, 1 + 3 * number
        found |= _block(f"encoder.model.{place}", size)
        found |= _convolution(f"encoder.model.{place + 2}", 2 * size, size, 2 * ratio, gain=1.4)
    for number, ratio in enumerate(_RATIOS):
        size, place = widest // 2**number, 2 + 3 * number
        kernel = Drawn((size, size // 2, 2 * ratio), spread=(1.0 / size) ** 0.5)
        found |= under(f"decoder.model.{place}.convtr.convtr", {"weight": kernel, "bias": Drawn.bias(size // 2)})
        found |= _block(f"decoder.model.{place + 1}", size // 2)
    found["downsample.conv.conv.conv.weight"] = Drawn.product(hidden, hidden, 4)
    found["upsample.convtr.convtr.convtr.weight"] = Drawn((hidden, 1, 4), spread=1.0)
    for side in ("encoder", "decoder"):
        for number in range(_CODEC["num_hidden_layers"]):
            found |= under(f"{side}_transformer.transformer.layers.{number}", _codec_layer())
    return {**found, **_codebooks()}


def _convolution(name: str, outputs: int, inputs: int, width: int, gain: float = 1.0) -> Tensors:
    return under(f"{name}.conv.conv", {"weight": Drawn.product(outputs, inputs, width, gain=gain), "bias": Drawn.bias(outputs)})


def _block(name: str, size: int) -> Tensors:
    first = _convolution(f"{name}.block.1", size // 2, size, 3)
    return first | _convolution(f"{name}.block.3", size, size // 2, 1)


def _codec_layer() -> Tensors:
    hidden, inner = _CODEC["hidden_size"], _CODEC["intermediate_size"]
    norm = {"weight": Drawn.norm(hidden), "bias": Drawn.bias(hidden)}
    return {
        "self_attn.in_proj_weight": Drawn.product(3 * hidden, hidden),
        "self_attn.out_proj.weight": Drawn.product(hidden, hidden),
        "linear1.weight": Drawn.product(inner, hidden),
        "linear2.weight": Drawn.product(hidden, inner),
        "layer_scale_1.scale": Drawn((hidden,), center=0.3, spread=0.03),
        "layer_scale_2.scale": Drawn((hidden,), center=0.3, spread=0.03),
        **under("norm1", norm),
        **under("norm2", norm),
    }


def _codebooks() -> Tensors:
    hidden, inner = _CODEC["hidden_size"], _CODEC["vector_quantization_hidden_dimension"]
    found: Tensors = {}
    # More codebooks than the network uses, as in the published file.
    for name, count in (("rvq_first", 1), ("rvq_rest", CODES + 1)):
        found[f"quantizer.{name}.input_proj.weight"] = Drawn.product(inner, hidden, 1)
        found[f"quantizer.{name}.output_proj.weight"] = Drawn.product(hidden, inner, 1)
        for number in range(count):
            book = {
                "embedding_sum": Drawn.table(_CODEC["codebook_size"], _CODEC["codebook_dim"]),
                "cluster_usage": Drawn((_CODEC["codebook_size"],), center=1.0, spread=0.1, least=0.5),
                "_initialized": Drawn((1,), center=1.0, spread=0.0),
            }
            found |= under(f"quantizer.{name}.vq.layers.{number}._codebook", book)
    return found


def _write_voices(path: Path, sizes: Mapping[str, Any], seed: int) -> None:
    """Write voices as the published archive has them: torch's own files in a compressed tar."""
    try:
        import torch
    except ImportError as error:
        raise DependencyError("torch is not installed", where="omni tiny", hint="pip install torch") from error
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for number, name in enumerate(VOICE_NAMES):
            chance = torch.Generator().manual_seed(seed * 100 + number)
            columns = torch.randint(0, sizes["card"], (1, STREAMS, 4), generator=chance)
            columns[:, 0] = sizes["text_pad"]
            embeddings = 4.0 * torch.randn((_VOICE_FRAMES, 1, 1, sizes["dim"]), generator=chance)
            buffer = io.BytesIO()
            torch.save({"embeddings": embeddings, "cache": columns}, buffer)
            member = tarfile.TarInfo(f"voices/{name}.pt")
            member.size = buffer.tell()
            archive.addfile(member, io.BytesIO(buffer.getvalue()))
