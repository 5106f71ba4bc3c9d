"""The transformers configuration of MOSS-TTS Local, which transformers itself does not have; read in the engine's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PretrainedConfig, Qwen3Config

_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
)
_ROPE_THETA = 1_000_000.0


class MossTTSLocalConfig(PretrainedConfig):
    """Hold config.json as it is, and the backbone as `text_config`: what `get_text_config()` gives vLLM."""

    model_type = "moss_tts_local"
    sub_configs: ClassVar[dict[str, type[PretrainedConfig]]] = {"text_config": Qwen3Config}

    def __init__(self, **kwargs: Any) -> None:
        kwargs.pop("text_config", None)  # of a saved copy of this object; it follows from the rest
        # The same values are there twice. `language_config` stays out of the attributes, because transformers would take it
        # for a configuration of its own when it looks for the text model.
        language = kwargs.pop("language_config", None)
        self.qwen3_config = dict(kwargs.pop("qwen3_config", None) or language or {})
        self.text_config = backbone_config(self.qwen3_config)
        super().__init__(**kwargs)


def backbone_config(raw: Mapping[str, Any]) -> Qwen3Config:
    """Return the backbone as a Qwen3 configuration; its own head for text has no use and is left out."""
    parameters = raw.get("rope_parameters") or {}
    theta = float(raw.get("rope_theta", parameters.get("rope_theta", _ROPE_THETA)))
    return Qwen3Config(
        **{name: raw[name] for name in _NAMES if name in raw},
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=False,
    )
