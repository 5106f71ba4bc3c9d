"""The transformers configuration of Qwen3-TTS, which transformers itself does not have; read in the engine's process."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig, Qwen3Config

_ROPE_THETA = 1_000_000.0


class Qwen3TTSConfig(PretrainedConfig):
    """Hold config.json as it is, and the talker's backbone as `text_config`: what `get_text_config()` gives vLLM."""

    model_type = "qwen3_tts"
    sub_configs: ClassVar[dict[str, type[PretrainedConfig]]] = {"text_config": Qwen3Config}

    def __init__(self, talker_config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        kwargs.pop("text_config", None)  # of a saved copy of this object; it follows from talker_config
        self.talker_config = dict(talker_config or {})
        self.text_config = talker_text_config(self.talker_config)
        super().__init__(**kwargs)


def talker_text_config(talker: dict[str, Any]) -> Qwen3Config:
    """Return the talker's backbone as a Qwen3 configuration.

    The checkpoint asks for rotary embeddings with three position axes, but in speech all three count the same rows; with
    equal positions every section of the interleaved embedding rotates by the same angle as the plain one. So the plain
    one is exact, and vLLM need not carry three positions for each row.
    """
    names = (
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
    return Qwen3Config(
        **{name: talker[name] for name in names if name in talker},
        rope_parameters={"rope_type": "default", "rope_theta": float(talker.get("rope_theta", _ROPE_THETA))},
        tie_word_embeddings=False,
        eos_token_id=talker.get("codec_eos_token_id"),
    )
