"""A request's sampling parameters: whose they are, and what vLLM gets of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling
from omni_core.errors import RequestError

pytestmark = pytest.mark.engine

TOKEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
OF_TOKEN = MtpCapability(output_key="codes", num_codes=4)
OF_FRAME = MtpCapability(output_key="codes", num_codes=4, token_sampling=TOKEN, penalises_repetition=True)


@pytest.fixture
def steer(make_stage: Any) -> Any:
    from omni_core.engine.ar.requests import steer

    return lambda sampling, mtp: steer(make_stage(), sampling, mtp)


def test_parameters_are_the_tokens_unless_the_model_says_otherwise(steer: Any) -> None:
    sampling = {"temperature": 0.9, "top_k": 5, "extra_args": {"mtp": {"top_k": 3}}}

    assert steer(sampling, None) == steer(sampling, OF_TOKEN) == sampling


def test_parameters_of_the_frame_go_below_those_that_name_it(steer: Any) -> None:
    sampling = {"temperature": 1.7, "top_k": 25, "seed": 3, "extra_args": {"mtp": {"top_k": 9}, "other": 1}}

    steered = steer(sampling, OF_FRAME)

    assert steered["extra_args"] == {"mtp": {"temperature": 1.7, "top_k": 9}, "other": 1}
    assert {name: steered[name] for name in TOKEN} == TOKEN
    assert steered["seed"] == 3


def test_a_greedy_request_is_greedy_in_both(steer: Any) -> None:
    steered = steer({"temperature": 0.0, "repetition_penalty": 1.1}, OF_FRAME)

    assert (steered["temperature"], steered["repetition_penalty"]) == (0.0, 1.0)
    assert steered["extra_args"]["mtp"] == {"temperature": 0.0, "repetition_penalty": 1.1}


def test_a_penalty_that_the_model_does_not_have_is_refused(steer: Any) -> None:
    with pytest.raises(RequestError, match="no repetition penalty") as caught:
        steer({"extra_args": {"mtp": {"repetition_penalty": 1.1}}}, OF_TOKEN)

    assert caught.value.param == "extra_args.mtp.repetition_penalty"


def test_the_predictors_sampling_is_the_requests_over_the_models() -> None:
    from omni_core.engine.ar.requests import mtp_sampling

    default = MtpSampling(temperature=1.7, top_k=25, top_p=0.8)
    params = SimpleNamespace(extra_args={"mtp": {"top_k": -1, "repetition_penalty": 1.2}}, temperature=1.0)

    assert mtp_sampling(params, default) == MtpSampling(temperature=1.7, top_k=0, top_p=0.8, repetition_penalty=1.2)


def test_ids_that_the_model_cannot_sample_end_nothing() -> None:
    """vLLM's `min_tokens` would take them for columns of the logits, and the engine would end."""
    from omni_core.engine.ar.requests import drop_unreachable_stops

    sampling: dict[str, Any] = {"stop_token_ids": [5, 151645, 9]}
    drop_unreachable_stops(sampling, 10)

    assert sampling == {"stop_token_ids": [5, 9]}


def test_ends_that_follow_from_the_input_extend_the_requests_own(make_stage: Any) -> None:
    from omni_core.engine.ar.requests import effective_sampling

    stage = make_stage(topology={"sampling_constraints": {"stop_token_ids": [7]}})

    found = effective_sampling(stage, {"stop_token_ids": [3]}, {"stop_token_ids": [5]})

    assert found["stop_token_ids"] == [3, 5, 7]


def test_ignore_eos_is_refused_where_the_pipelines_stop_ids_stay(make_stage: Any) -> None:
    from omni_core.engine.ar.requests import effective_sampling

    fixed = make_stage(topology={"sampling_constraints": {"stop_token_ids": [5]}}, sampling={"temperature": 0.0})
    free = make_stage(sampling={"temperature": 0.0})

    with pytest.raises(RequestError, match="stop ids") as caught:
        effective_sampling(fixed, {"ignore_eos": True}, {})

    assert caught.value.param == "ignore_eos"
    assert effective_sampling(free, {"ignore_eos": True}, {})["ignore_eos"]


@pytest.mark.parametrize(("declared", "width"), [(0, 48), (12, 12), ("thinker_hidden_size", 64)])
def test_rows_are_as_wide_as_the_model_says(declared: int | str, width: int) -> None:
    from omni_core.engine.ar.requests import row_width

    config = SimpleNamespace(hf_config=SimpleNamespace(thinker_hidden_size=64), get_inputs_embeds_size=lambda: 48)

    assert row_width(ModelCapabilities(row_width=declared), config) == width
