from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_core.capabilities import MtpSampling
from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import ConfigReader

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

GREEDY = MtpSampling(do_sample=False)


def _predictor(**changes: Any) -> Any:
    from omni_core.modelkit.code_predictor import CodePredictor, PredictorConfig

    config = PredictorConfig(
        hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, head_dim=16, vocab_size=64, steps=5, talker_hidden=24
    )
    predictor = CodePredictor(replace(config, **changes))
    generator = torch.Generator().manual_seed(0)
    for view in predictor.checkpoint_views().values():
        view.copy_(torch.randn(view.shape, generator=generator) * (0.5 if view.ndim > 1 else 0.1) + (view.ndim == 1))
    predictor.finish_loading()
    return predictor


def _reference_codes(predictor: Any, hidden: Any, first: Any) -> Any:
    """Predict one code after another with transformers' Qwen3, reading the whole frame anew each time."""
    from transformers import Qwen3Config, Qwen3Model

    config = predictor.config
    model = Qwen3Model(
        Qwen3Config(
            vocab_size=1,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        )
    ).eval()
    views = predictor.checkpoint_views()
    state = {
        name.removeprefix("model."): view for name, view in views.items() if name.startswith(("model.layers", "model.norm"))
    }
    found = model.load_state_dict(state, strict=False)
    assert found.missing_keys == ["embed_tokens.weight"]
    assert not found.unexpected_keys
    rows, codes = [hidden, first], []
    for step in range(config.steps):
        x = torch.stack(rows, 1)
        if predictor.projects:
            x = x @ views["small_to_mtp_projection.weight"].T + views["small_to_mtp_projection.bias"]
        last = model(inputs_embeds=x).last_hidden_state[:, -1]
        codes.append((last @ views[f"lm_head.{step}.weight"].T).argmax(-1))
        rows.append(views[f"model.codec_embedding.{step}.weight"][codes[-1]])
    return torch.stack(codes, 1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"talker_hidden": 32}, {"kv_heads": 4}],
    ids=["as the 1.7B models", "without projection, as the 0.6B models", "as many key heads as query heads"],
)
def test_codes_equal_a_straight_line_forward_pass(changes: dict[str, Any]) -> None:
    predictor = _predictor(**changes)
    generator = torch.Generator().manual_seed(5)
    hidden, first = torch.randn(2, 6, predictor.config.talker_hidden, generator=generator)

    with torch.inference_mode():
        codes = predictor(hidden, first, [GREEDY] * 6, None)
        expected = _reference_codes(predictor, hidden, first)

    assert torch.equal(codes, expected)
    assert len(set(map(tuple, codes.tolist()))) > 1


def test_a_projection_is_there_only_where_the_widths_differ() -> None:
    assert not any("projection" in name for name in _predictor(talker_hidden=32).checkpoint_views())


def test_frames_embed_as_the_sum_of_their_tables_and_absent_codes_add_nothing() -> None:
    predictor = _predictor()
    views = predictor.checkpoint_views()
    codes = torch.tensor([[3, -1, 5, -1, 63], [-1] * 5])

    embedded = predictor.embed(codes)

    table = [views[f"model.codec_embedding.{step}.weight"] for step in range(5)]
    torch.testing.assert_close(embedded[0], table[0][3] + table[2][5] + table[4][63])
    assert (embedded[1] == 0).all()


def test_uniforms_decide_sampled_rows_and_leave_greedy_rows_alone() -> None:
    predictor = _predictor()
    generator = torch.Generator().manual_seed(2)
    hidden, first = torch.randn(2, 3, 24, generator=generator)
    rows = [MtpSampling(temperature=5.0), GREEDY, MtpSampling(temperature=5.0)]
    uniforms, others = torch.rand(2, 3, 5, 64, generator=generator)

    with torch.inference_mode():
        one, again = predictor(hidden, first, rows, uniforms), predictor(hidden, first, rows, uniforms)
        other = predictor(hidden, first, rows, others)
        greedy = predictor(hidden, first, [GREEDY] * 3, None)

    assert torch.equal(one, again)
    assert not torch.equal(one[[0, 2]], other[[0, 2]])
    assert torch.equal(one[1], greedy[1])


def test_sizes_come_from_the_talkers_configuration() -> None:
    from omni_core.modelkit.code_predictor import PredictorConfig

    raw = {"vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5}
    raw |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}

    config = PredictorConfig.read(ConfigReader(raw, "config.json", "tiny"), codes=16, talker_hidden=2048)

    assert (config.steps, config.layers, config.talker_hidden, config.rope_theta) == (15, 5, 2048, 1e6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": None}, r"talker\.intermediate_size is missing"),
        ({"num_hidden_layers": 0}, r"talker\.num_hidden_layers must be a positive whole number, not 0"),
        ({"rms_norm_eps": "1e-6"}, r"talker\.rms_norm_eps must be a positive number, not '1e-6'"),
        ({"rope_parameters": {"rope_theta": -1}}, r"talker\.rope_parameters\.rope_theta must be a positive number, not -1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_size_that_cannot_be_is_named_with_its_file(changes: dict[str, Any], message: str) -> None:
    from omni_core.modelkit.code_predictor import PredictorConfig

    raw = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    raw |= {"num_attention_heads": 4, "num_key_value_heads": 2, **changes}

    with pytest.raises(ConfigError, match=message) as error:
        PredictorConfig.read(ConfigReader(raw, "m/config.json", "tiny", "talker."), codes=6, talker_hidden=32)

    assert error.value.where == "m/config.json"
