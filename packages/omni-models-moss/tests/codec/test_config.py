from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_moss.codec.config import CodecConfig, Patch, TransformerSizes
from omni_models_moss.codec.tiny import CONFIG


def read(**changes: Any) -> CodecConfig:
    raw = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = raw
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return CodecConfig.read(raw, where="codec/config.json")


def transformers(config: CodecConfig, side: str) -> list[TransformerSizes]:
    return [part for part in getattr(config, side) if isinstance(part, TransformerSizes)]


def test_sizes_of_the_golden_codec(golden_codec: Path) -> None:
    raw = json.loads((golden_codec / "config.json").read_text(encoding="utf-8"))

    config = CodecConfig.read(raw, where="config.json")

    assert (config.sample_rate, config.channels, config.samples_per_frame) == (48000, 2, 3840)
    assert (config.num_quantizers, config.codebook_size, config.codebook_dim) == (12, 1024, 8)
    assert (config.residual_dim, config.latent_in, config.latent_out) == (16, 24, 24)
    assert config.compute_dtype == "float32"
    # Ten seconds each, at 12.5, 50, 100, 200 and 400 columns a second.
    assert [part.window for part in transformers(config, "decoder")] == [125, 500, 1000, 2000, 4000]
    assert [part.window for part in transformers(config, "encoder")] == [4000, 2000, 1000, 500, 125]
    assert [part.rate for part in transformers(config, "encoder")] == [32, 16, 8, 4, 1]
    assert [part.size for part in config.decoder if isinstance(part, Patch)] == [4, 2, 2, 2, 240]


def test_windows_of_the_released_stereo_codec() -> None:
    """The released codec looks back ten seconds where frames are slow, and one second where samples are near."""
    seconds = [10.0, 10.0, 8.0, 4.0, 2.0, 1.0]
    ports = [(768, 1280), (640, 768), (384, 768), (384, 768), (384, 768), (384, 240)]
    decoder: list[dict[str, Any]] = []
    for (inputs, outputs), context_s in zip(ports, seconds, strict=True):
        width, heads = (1280, 20) if not decoder else (768, 12)
        sizes = {"d_model": width, "num_heads": heads, "num_layers": 12, "dim_feedforward": 4 * width}
        ends = {"input_dimension": inputs, "output_dimension": outputs, "context_duration": context_s}
        patch = 240 if outputs == 240 else 2
        decoder += [
            {"module_type": "Transformer", **sizes, **ends},
            {"module_type": "PatchedPretransform", "patch_size": patch},
        ]
    encoder = [
        {**part, "input_dimension": part["output_dimension"], "output_dimension": part["input_dimension"]}
        if part["module_type"] == "Transformer"
        else part
        for part in reversed(decoder)
    ]

    config = read(
        decoder_kwargs=decoder,
        encoder_kwargs=encoder,
        quantizer_kwargs={**CONFIG["quantizer_kwargs"], "input_dim": 768, "output_dim": 768, "num_quantizers": 32},
    )

    assert [part.window for part in transformers(config, "decoder")] == [125, 250, 400, 400, 400, 400]
    assert [part.window for part in transformers(config, "encoder")] == [400, 400, 400, 400, 250, 125]


def test_a_transformers_own_context_beats_the_codecs() -> None:
    config = read(causal_transformer_context_duration=2.0, decoder_kwargs__2__context_duration=None)

    assert [part.window for part in transformers(config, "decoder")] == [10, 100, 40, 40]


def test_a_context_that_is_no_whole_number_of_columns_is_rounded_down() -> None:
    config = read(decoder_kwargs__0__context_duration=0.99)

    assert transformers(config, "decoder")[0].window == 12


def test_a_mono_codec_may_leave_its_channels_out() -> None:
    config = read(number_channels=None, downsample_rate=7680, sampling_rate=96000)

    assert (config.channels, config.samples_per_frame) == (1, 7680)


def test_other_spellings_are_understood() -> None:
    raw = copy.deepcopy(CONFIG)
    raw["sample_rate"] = raw.pop("sampling_rate")
    raw |= {"compute_dtype": None, "codec_compute_dtype": "bf16"}
    turned = []
    for part in reversed(raw.pop("decoder_kwargs")):
        inputs = {"input_dimension": part.get("output_dimension"), "output_dimension": part.get("input_dimension")}
        turned.append({**part, **inputs} if part["module_type"] == "Transformer" else part)
    raw["reversed_decoder_kwargs"] = turned

    config = CodecConfig.read(raw, where="config.json")

    assert config.decoder == read().decoder
    assert config.sample_rate == 48000
    assert config.compute_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantizer_kwargs": None}, "quantizer_kwargs is missing"),
        ({"quantizer_kwargs__num_quantizers": 0}, "quantizer_kwargs.num_quantizers must be a positive whole number, not 0"),
        ({"quantizer_kwargs__quantizer_type": "rvq"}, "quantizer_type 'rvq' is not known"),
        ({"sampling_rate": "48k"}, "sampling_rate must be a positive whole number, not '48k'"),
        ({"encoder_kwargs": {}}, "encoder_kwargs must be of type list, not {}"),
        ({"decoder_kwargs": [7]}, "the patches multiply to 7680 and 1"),
        ({"decoder_kwargs__1__patch_size": 5}, "the patches multiply to 7680 and 9600, not to 3840 samples of 2 channels"),
        ({"decoder_kwargs__1__module_type": "Resample"}, r"decoder_kwargs\[1\] is of the unknown type 'Resample'"),
        ({"decoder_kwargs__0__norm": "rms_norm"}, r"decoder_kwargs\[0\]\.norm is 'rms_norm', but only 'layer_norm' is known"),
        ({"decoder_kwargs__0__causal": False}, "causal is False"),
        ({"decoder_kwargs__0__num_heads": 3}, "3 heads of a width of 32"),
        ({"decoder_kwargs__0__context_duration": 0.01}, "a window of 0 columns"),
        ({"decoder_kwargs__2__input_dimension": 17}, "the transformer 2 takes 17 values a column, but gets 16"),
        ({"quantizer_kwargs__input_dim": 25}, "the encoder ends with 24 values a column instead of 25"),
        (
            {"causal_transformer_context_duration": "10"},
            "causal_transformer_context_duration must be a positive number, not '10'",
        ),
        (
            {"decoder_kwargs__0__context_duration": -1},
            r"decoder_kwargs\[0\]\.context_duration must be a positive number, not -1",
        ),
        ({"decoder_kwargs__0__max_period": [1]}, r"decoder_kwargs\[0\]\.max_period must be a positive number, not \[1\]"),
        ({"compute_dtype": "fp8"}, "compute_dtype 'fp8' is not known, only fp32, float32, bf16"),
        ({"enable_channel_interleave": False}, "enable_channel_interleave is off, but there are 2 channels"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_file_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(**changes)

    assert error.value.where == "codec/config.json"
