"""The transformers configurations of the talkers, which transformers itself does not have; read in the engine's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import GPT2Config, PretrainedConfig, Qwen3Config

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


class MossConfig(PretrainedConfig):
    """Hold config.json as it is, and the backbone as `text_config`: what `get_text_config()` gives vLLM.

    Subclasses name `__init__` once more, because transformers makes one for each class that does not.
    """

    sub_configs: ClassVar[dict[str, type[PretrainedConfig]]] = {"text_config": Qwen3Config}

    def __init__(self, **kwargs: Any) -> None:
        kwargs.pop("text_config", None)  # of a saved copy of this object; it follows from the rest
        # `language_config` stays out of the attributes, because transformers would take it for a configuration of its own when
        # it looks for the text model. Some files have the same values under both names.
        language = kwargs.pop("language_config", None)
        self.qwen3_config = dict(kwargs.pop("qwen3_config", None) or language or {})
        self.text_config = self.backbone(kwargs)
        super().__init__(**kwargs)

    def backbone(self, raw: Mapping[str, Any]) -> PretrainedConfig:
        """Return the backbone's configuration."""
        return qwen3_backbone(self.qwen3_config)


class MossTTSLocalConfig(MossConfig):
    """MOSS-TTS Local."""

    model_type = "moss_tts_local"
    __init__ = MossConfig.__init__


class MossTTSDelayConfig(MossConfig):
    """MOSS-TTS, TTSD, VoiceGenerator and SoundEffect."""

    model_type = "moss_tts_delay"
    __init__ = MossConfig.__init__


class MossTTSRealtimeConfig(MossConfig):
    """MOSS-TTS Realtime."""

    model_type = "moss_tts_realtime"
    __init__ = MossConfig.__init__


class MossTTSNanoConfig(MossConfig):
    """MOSS-TTS Nano, whose backbone and local transformer have one section."""

    model_type = "moss_tts_nano"
    __init__ = MossConfig.__init__
    sub_configs: ClassVar[dict[str, type[PretrainedConfig]]] = {"text_config": GPT2Config}

    def backbone(self, raw: Mapping[str, Any]) -> PretrainedConfig:
        """Return the backbone's configuration."""
        if self.qwen3_config:
            return super().backbone(raw)
        config = {name: value for name, value in (raw.get("gpt2_config") or {}).items() if not name.endswith("_token_id")}
        return GPT2Config(**{**config, "tie_word_embeddings": False})


def qwen3_backbone(raw: Mapping[str, Any]) -> Qwen3Config:
    """Return the backbone as a Qwen3 configuration; its own head for text has no use and is left out."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = rope.pop("type", "default")  # as older files call `rope_type`
    theta = float(raw.get("rope_theta", rope.get("rope_theta", _ROPE_THETA)))
    return Qwen3Config(
        **{name: raw[name] for name in _NAMES if name in raw},
        rope_parameters={"rope_type": kind, **rope, "rope_theta": theta},
        tie_word_embeddings=False,
    )
