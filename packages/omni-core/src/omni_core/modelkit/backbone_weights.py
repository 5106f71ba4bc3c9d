"""A checkpoint's tensors into a model around one of vLLM's backbones; a misfit is an error that names the tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from omni_core.errors import ConfigError

ATTENTION = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}" for name in ("k_norm", "k_proj", "o_proj", "q_norm", "q_proj", "v_proj")),
)
"""Tensors of a decoder layer whose queries and keys are normed, without its feed-forward part."""
GATED_MLP = ("down_proj", "gate_proj", "up_proj")
"""Tensors of a gated feed-forward network. As all these names, they are followed by `.weight`."""
DECODER_LAYER = (*ATTENTION, *(f"mlp.{name}" for name in GATED_MLP))
"""Tensors of a dense decoder layer."""
_HINT = "use weights and config.json of one and the same checkpoint"
_SHOWN = 5


def decoder_names(theirs: str, ours: str, layers: int, layer: Sequence[str] = DECODER_LAYER) -> dict[str, str]:
    """Return the names of a decoder's layers and last norm: under `theirs` in the checkpoint, under `ours` in the model.

    Args:
        theirs: Prefix in the checkpoint.
        ours: Prefix in the model.
        layers: How many layers it has.
        layer: Tensors of a layer.
    """
    parts = [f"layers.{index}.{part}.weight" for index in range(layers) for part in layer]
    return {f"{theirs}.{part}": f"{ours}.{part}" for part in (*parts, "norm.weight")}


class BackboneWeights:
    """Where each tensor of a checkpoint goes.

    Args:
        model: The model; `model.model` is vLLM's backbone, which loads its own tensors and fuses some.
        names: The checkpoint's names of tensors to the model's names of parameters; `model.` marks the backbone's.
        views: Where further tensors go, by the checkpoint's names: parts of larger parameters.
        others: Beginnings of names of tensors that other programs read, unless they are among `views`.
    """

    def __init__(self, model: Any, names: Mapping[str, str], views: Mapping[str, Tensor], others: Collection[str] = ()) -> None:
        self._model = model
        self._parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self._names = names
        self._views = views
        self._others = tuple(others)
        self._left = {*views, *names}
        self._unknown: list[str] = []
        self._present = ""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load all tensors, or some into a model that had all before, and return the names of all parameters.

        Raises:
            ConfigError: A tensor is missing, is not known or has another shape; the message names it.
        """
        try:
            self._model.model.load_weights(self._backbone(weights))
        except (AssertionError, ValueError, RuntimeError, KeyError) as error:  # what vLLM's loaders raise for shapes
            raise ConfigError(f"the tensor {self._present} cannot be loaded: {error}", hint=_HINT) from error
        # A trainer sends a model that is there its new weights in parts.
        missing = [] if getattr(self._model, "is_loaded", False) else sorted(self._left)
        for what, names in (("lacks the tensors", missing), ("has the unknown tensors", self._unknown)):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise ConfigError(f"the checkpoint {what} {', '.join(names[:_SHOWN])}{more}", hint=_HINT)
        self._model.is_loaded = True
        # Layers that adapters may change are wrapped; vLLM asks for the names that they had before.
        return {name.replace(".base_layer.", ".") for name in self._parameters}

    def _backbone(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Load what is not the backbone's and yield the rest under the backbone's names."""
        for name, tensor in weights:
            if name not in self._views and name.startswith(self._others):
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


def _copy(name: str, target: Tensor, tensor: Tensor) -> None:
    if target.shape != tensor.shape:
        raise ConfigError(f"the tensor {name} has the shape {list(tensor.shape)} instead of {list(target.shape)}", hint=_HINT)
    target.copy_(tensor)
