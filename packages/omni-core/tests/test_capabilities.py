"""Capabilities are declared on the class and read in one place (rule MR-08)."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.capabilities import (
    HiddenCapture,
    ModelCapabilities,
    MtpCapability,
    MtpSampling,
    SampleUniforms,
    read_capabilities,
)
from omni_core.errors import ConfigError


def _method(self: Any, *args: Any) -> None:
    return None


INPUTS = dict.fromkeys(("omni_begin", "omni_embed", "omni_end"), _method)
PREDICTOR = {
    **INPUTS,
    **dict.fromkeys(("mtp", "omni_condition", "omni_record"), _method),
    "mtp_output_key": ("codes", "audio"),
    "mtp_num_codes": 16,
}


def _model(**attributes: Any) -> type:
    return type("Model", (), attributes)


def test_a_class_that_declares_nothing_gets_vllms_own_path() -> None:
    assert read_capabilities(_model()) == ModelCapabilities()


def test_mr_08_the_contracts_names_become_one_record() -> None:
    found = read_capabilities(
        _model(
            **PREDICTOR,
            mtp_validity_key="valid",
            mtp_graph_safe=True,
            mtp_accepts_req_infos=True,
            mtp_sample_uniforms=True,
            mtp_sample_steps=15,
            mtp_sample_vocab_size=2048,
            mtp_sampling_params=MtpSampling(temperature=0.9, top_k=50),
            _returns_tuple=True,
        )
    )

    assert found.computes_inputs
    assert found.returns_tuple
    assert found.mtp == MtpCapability(
        output_key=("codes", "audio"),
        num_codes=16,
        validity_key="valid",
        graph_safe=True,
        accepts_req_infos=True,
        sample_uniforms=SampleUniforms(15, 2048),
        sampling=MtpSampling(temperature=0.9, top_k=50),
    )
    assert found.mtp.payload_key == "codes.audio"


def test_the_width_of_rows_may_be_a_name_of_the_configuration() -> None:
    found = read_capabilities(_model(**INPUTS, omni_ingest=_method, row_width="thinker_hidden_size"))

    assert (found.gated_inputs, found.row_width) == (True, "thinker_hidden_size")


def test_a_record_on_the_class_is_taken_as_it_is() -> None:
    record = ModelCapabilities(computes_inputs=True, row_width=8)

    assert read_capabilities(_model(**INPUTS, capabilities=record)) is record


@pytest.mark.parametrize(
    ("attributes", "fact"),
    [
        ({**PREDICTOR, "mtp_output_key": None}, "mtp_output_key"),
        ({**PREDICTOR, "mtp_num_codes": 0}, "mtp_num_codes"),
        ({**PREDICTOR, "mtp_sample_uniforms": True}, "mtp_sample_steps"),
        ({**PREDICTOR, "mtp_sampling_params": {"top_k": 5}}, "MtpSampling"),
        ({**PREDICTOR, "mtp": None}, "no method `mtp`"),
        ({**PREDICTOR, "omni_record": None}, "`omni_record` is missing"),
        ({**PREDICTOR, "omni_embed": None}, "needs the input methods"),
        ({"omni_ingest": _method}, "gated inputs need"),
        ({"capabilities": ModelCapabilities(constrains_sampling=True)}, "constrained sampling needs"),
        ({**INPUTS, "capabilities": ModelCapabilities(computes_inputs=True, constrains_sampling=True)}, "`omni_constrain` is"),
        (
            {**INPUTS, "capabilities": ModelCapabilities(computes_inputs=True, capture=HiddenCapture("a:b"))},
            "hidden states are",
        ),
        ({**PREDICTOR, "capabilities": ModelCapabilities()}, "both declared"),
    ],
    ids=[
        "key",
        "codes",
        "uniforms",
        "sampling",
        "mtp",
        "record",
        "embed",
        "gated",
        "constrained",
        "constrain",
        "captured",
        "both",
    ],
)
def test_a_contradiction_is_refused_at_load_with_the_class_named(attributes: dict[str, Any], fact: str) -> None:
    with pytest.raises(ConfigError, match=fact) as caught:
        read_capabilities(_model(**attributes))

    assert "Model" in caught.value.where


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [(MtpSampling(), False), (MtpSampling(temperature=0), True), (MtpSampling(do_sample=False), True)],
)
def test_temperature_0_and_do_sample_false_are_greedy(sampling: MtpSampling, greedy: bool) -> None:
    assert sampling.greedy is greedy
