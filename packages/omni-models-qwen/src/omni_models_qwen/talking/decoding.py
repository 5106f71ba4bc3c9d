"""What stages that decode frames have in common beyond `omni_core.modelkit.codec_stage`: where they compute, and how exactly.

Runs in the stages' own processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_core.modelkit.codec_stage import CodecStage, stage_device, stage_dtype
from omni_core.modelkit.weights import TensorReader
from omni_core.stage import ResolvedStage
from omni_models_qwen.talking.options import own_options


def decoder_dtype(stage: ResolvedStage) -> torch.dtype:
    """Return the dtype that a stage computes in, float32 where nothing else is asked: what a listener hears is made here.

    Raises:
        ConfigError: The dtype is not known.
    """
    return stage_dtype(stage) or torch.float32


def decoder_device(stage: ResolvedStage) -> str:
    """Return torch's name of a stage's device, and let float32 products be rounded on it or not (`decode_enable_tf32`)."""
    device = stage_device(stage)
    if device == "cuda":
        allow_tf32(bool(edge_options(stage).get("decode_enable_tf32", False)))
    return device


def edge_options(stage: ResolvedStage) -> dict[str, Any]:
    """Return the stream options of the edge that brings the codes; a stage that makes codes itself has its own options."""
    return dict(stage.inputs[0].stream if stage.inputs else own_options(stage))


def allow_tf32(allowed: bool) -> None:
    """Let float32 products on CUDA round their inputs to ten bits, for speed, or not (`decode_enable_tf32`)."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def filled(model: Any, folder: Path, prefix: str, *, device: str, dtype: torch.dtype) -> Any:
    """Return a model of transformers with the tensors of a checkpoint, where it computes.

    Args:
        model: The model, with any values.
        folder: The checkpoint.
        prefix: What the model's names have before them there; no other tensor may have it.
        device: torch's name of a device.
        dtype: Of the weights.

    Raises:
        ConfigError: A file is missing or damaged, or its tensors are not this model's.
    """
    reader = TensorReader.of_folder(folder, prefix)
    tensors = {name: reader.take(name, *value.shape) for name, value in model.state_dict().items()}
    reader.finish()
    model.load_state_dict(tensors)
    return model.to(device, dtype).eval()


class _Movable:
    """A model of transformers, as `CodecStage` moves a decoder."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = torch.device(model.device)

    def move(self, device: torch.device | None = None) -> None:
        self.model.to(device or self.device)


class TransformersStage(CodecStage):
    """A stage whose decoder is a model of transformers that makes one channel at 24 kHz.

    Args:
        model: The model, loaded.
    """

    sample_rate = 24_000
    channels = 1

    def __init__(self, model: Any) -> None:
        self.decoder = _Movable(model)

    @property
    def model(self) -> Any:
        """The loaded model."""
        return self.decoder.model

    def reload(self, stage: ResolvedStage) -> None:
        """Load the model again; what requests remember does not depend on it.

        Raises:
            ConfigError: As `load`.
        """
        again = type(self).load(stage)
        assert isinstance(again, TransformersStage)
        self.decoder = again.decoder
