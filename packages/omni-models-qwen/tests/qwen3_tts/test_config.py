from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture
def config(data_folder: Path) -> Any:
    from omni_models_qwen.qwen3_tts.config import Qwen3TTSConfig

    return Qwen3TTSConfig.from_pretrained(data_folder)


def test_the_text_model_is_the_talker(config: Any) -> None:
    talker = config.get_text_config()

    assert (talker.vocab_size, talker.hidden_size, talker.num_hidden_layers, talker.head_dim) == (3072, 48, 2, 32)
    assert talker.eos_token_id == 2150
    assert not talker.tie_word_embeddings


def test_rotary_embeddings_have_one_axis(config: Any) -> None:
    assert config.talker_config["rope_scaling"]["mrope_section"] == [6, 5, 5]
    assert config.get_text_config().rope_parameters == {"rope_type": "default", "rope_theta": 1_000_000.0}


def test_three_equal_axes_rotate_as_one() -> None:
    """The reason why one axis is exact."""
    import torch
    from vllm.model_executor.layers.rotary_embedding.mrope import apply_interleaved_rope

    angles = torch.rand(5, 16).expand(3, 5, 16)

    assert torch.equal(apply_interleaved_rope(angles, [6, 5, 5]), angles[0])


def test_a_saved_copy_is_the_same(config: Any) -> None:
    again = type(config).from_dict(copy.deepcopy(config.to_dict()))

    assert again.get_text_config().to_dict() == config.get_text_config().to_dict()
    assert again.talker_config == config.talker_config
