"""The encoder of the 12 Hz codec: audio becomes frames of codes. It is transformers' Mimi with this codec's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import MimiConfig, MimiModel

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.weights import TensorReader


class CodecEncoder:
    """Encode audio to codes, in float32."""

    def __init__(self, model: MimiModel, *, levels: int, sample_rate: int, samples_per_frame: int) -> None:
        self.sample_rate = sample_rate
        self._model = model
        self._levels = levels
        self._samples_per_frame = samples_per_frame

    @classmethod
    def load(cls, folder: Path) -> CodecEncoder:
        """Load the encoder of the codec in `folder`.

        Raises:
            ConfigError: A file is missing or damaged, or its tensors are not those of this model.
        """
        path = folder / "config.json"
        raw = read_json(path)
        try:
            levels, sample_rate = int(raw["encoder_valid_num_quantizers"]), int(raw["input_sample_rate"])
            samples_per_frame = int(raw["encode_downsample_rate"])
            config = _mimi_config(raw["encoder_config"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the codec's config.json cannot be used: {error!r}", where=str(path), hint="download it again"
            ) from error
        reader = TensorReader.of_folder(folder, "encoder.")
        model = MimiModel(config).eval()
        # Audio is made by our own decoder; these parts have no weights in the checkpoint.
        model.decoder = model.decoder_transformer = model.upsample = None
        model.load_state_dict({name: reader.take(name, *value.shape) for name, value in model.state_dict().items()})
        reader.finish()
        return cls(model, levels=levels, sample_rate=sample_rate, samples_per_frame=samples_per_frame)

    def __call__(self, samples: Tensor) -> Tensor:
        """Return codes [frames, levels] of mono samples [n]; a frame that the audio fills in part counts."""
        found = self._model.encode(samples[None, None], num_quantizers=self._levels).audio_codes
        frames = -(-samples.shape[0] // self._samples_per_frame)
        return found[0, :, :frames].T


def _mimi_config(raw: dict[str, Any]) -> MimiConfig:
    known = {name: raw[name] for name in MimiConfig.__annotations__ if raw.get(name) is not None}
    # The reference implementation attends to all of the past here. transformers 5 would cut it at `sliding_window` steps.
    known["sliding_window"] = max(int(raw.get("max_position_embeddings", 8000)), int(raw.get("sliding_window", 250)))
    if raw.get("rope_theta") is not None:
        known["rope_parameters"] = {"rope_type": "default", "rope_theta": float(raw["rope_theta"])}
    return MimiConfig(**known, frame_rate=float(raw.get("_frame_rate") or raw["frame_rate"]))
