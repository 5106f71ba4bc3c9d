from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_moss.local.checkpoint import Checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.engine


def _read(folder: Path, **changes: Any) -> Any:
    from omni_models_moss.local.local_transformer import LocalConfig

    raw = json.loads((folder / "config.json").read_text())
    raw["gpt2_config"] = {name: value for name, value in {**raw["gpt2_config"], **changes}.items() if value is not ...}
    return LocalConfig.read(Checkpoint.reader(raw, folder).section("gpt2_config"), Checkpoint.from_config(raw, folder))


def test_sizes_come_from_config_json(data_folder: Path) -> None:
    config = _read(data_folder, rope_base=500, n_inner=None)

    assert (config.hidden, config.inner, config.heads, config.head_dim, config.positions) == (64, 256, 4, 16, 12)
    assert (config.rope_base, config.eps, config.activation) == (500.0, 1e-6, "silu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": ...}, r"gpt2_config\.n_embd is missing"),
        ({"n_head": "4"}, r"gpt2_config\.n_head must be a positive whole number, not '4'"),
        ({"n_head": 3}, r"gpt2_config\.n_head 3 does not share out 64 values"),
        ({"n_head": 0}, "n_head must be a positive whole number, not 0"),
        ({"rope_base": "1e6"}, r"gpt2_config\.rope_base must be a positive number, not '1e6'"),
        ({"layer_norm_epsilon": True}, "layer_norm_epsilon must be a positive number, not True"),
        ({"n_inner": 0}, r"gpt2_config\.n_inner must be a positive whole number, not 0"),
        ({"activation_function": "relu"}, r"gpt2_config\.activation_function 'relu' is not supported"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute' is not supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sizes_that_cannot_be_used_are_named_with_their_file(changes: dict[str, Any], message: str, data_folder: Path) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        _read(data_folder, **changes)

    assert error.value.where == str(data_folder / "config.json")
