"""The checkpoint's tensors into the talker, one at a time; what is missing, unknown or of another shape is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from omni_core.errors import ConfigError

_PREDICTOR = "talker.code_predictor."
_SPEAKER_ENCODER = "speaker_encoder."
"""Tensors of the reference encoder, which runs beside the input processor."""
_LAYER_TENSORS = (
    "input_layernorm",
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "post_attention_layernorm",
    *(f"self_attn.{name}" for name in ("k_norm", "k_proj", "o_proj", "q_norm", "q_proj", "v_proj")),
)
_HINT = "use weights and config.json of one and the same checkpoint"


class TalkerWeights:
    """Where each tensor of a checkpoint goes.

    Args:
        talker: The model: `model` is vLLM's backbone, which loads its own tensors and fuses some.
        predictor_views: Where the code predictor's tensors go, by their names after `talker.code_predictor.`.
        layers: Layers of the backbone.
    """

    def __init__(self, talker: Any, predictor_views: Mapping[str, Tensor], layers: int) -> None:
        self._talker = talker
        self._parameters: dict[str, nn.Parameter] = dict(talker.named_parameters())
        self._views = {_PREDICTOR + name: view for name, view in predictor_views.items()}
        self._names = _own_names(layers)
        self._left = {*self._views, *self._names}
        self._unknown: list[str] = []
        self._present = ""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load all tensors and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        try:
            self._talker.model.load_weights(self._backbone(weights))
        except (AssertionError, ValueError, RuntimeError, KeyError) as error:  # what vLLM's loaders raise for shapes
            raise ConfigError(f"the tensor {self._present} cannot be loaded: {error}", hint=_HINT) from error
        for what, names in (("lacks the tensors", sorted(self._left)), ("has the unknown tensors", self._unknown)):
            if names:
                shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                raise ConfigError(f"the checkpoint {what} {shown}", hint=_HINT)
        return set(self._parameters)

    def _backbone(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Load what is not the backbone's and yield the rest under the backbone's names."""
        for name, tensor in weights:
            if name.startswith(_SPEAKER_ENCODER):
                continue
            if name not in self._views and name not in self._names:
                self._unknown.append(name)
                continue
            self._present = name
            self._left.discard(name)
            if name in self._views:
                _copy(name, self._views[name], tensor)
            elif (target := self._names[name]).startswith("model."):
                yield target.removeprefix("model."), tensor
            else:
                self._load_own(name, self._parameters[target], tensor)

    @staticmethod
    def _load_own(name: str, parameter: nn.Parameter, tensor: Tensor) -> None:
        loader = getattr(parameter, "weight_loader", None)  # vLLM's, for parameters that are split among ranks
        if loader is None:
            _copy(name, parameter.data, tensor)
        else:
            loader(parameter, tensor)


def _own_names(layers: int) -> dict[str, str]:
    """Return the checkpoint's names of everything but the code predictor, and the names in the talker."""
    names = {
        "talker.codec_head.weight": "codec_head.weight",
        "talker.model.codec_embedding.weight": "model.embed_tokens.weight",
        "talker.model.norm.weight": "model.norm.weight",
        "talker.model.text_embedding.weight": "text_embedding.weight",
    }
    for part in ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"):
        names[f"talker.text_projection.{part}"] = f"text_projection.{part}"
    for index in range(layers):
        for part in _LAYER_TENSORS:
            names[f"talker.model.layers.{index}.{part}.weight"] = f"model.layers.{index}.{part}.weight"
    return names


def _copy(name: str, target: Tensor, tensor: Tensor) -> None:
    if target.shape != tensor.shape:
        raise ConfigError(f"the tensor {name} has the shape {list(tensor.shape)} instead of {list(target.shape)}", hint=_HINT)
    target.copy_(tensor)
