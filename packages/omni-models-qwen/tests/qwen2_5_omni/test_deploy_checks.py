"""What a deployment of Qwen2.5-Omni must fulfil: no option that nobody reads, and one that is what it should be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]

FILE = "qwen2_5_omni.yaml"
LOGGER = "omni_models_qwen.qwen2_5_omni.deploy_checks"


def edge(extra: str) -> str:
    """Return an overlay that gives the edge from the talker to Code2Wav options."""
    return (
        f"connectors: {{c: {{name: SharedMemoryConnector, extra: {{{extra}}}}}}}\n"
        "stages: [{stage_id: 1, output_connectors: {to_stage_2: c}}, {stage_id: 2, input_connectors: {from_stage_1: c}}]\n"
    )


def option(text: str, stage: int = 1) -> str:
    return f"stages: [{{stage_id: {stage}, additional_config: {{{text}}}}}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("codec_chunk_frames: 25", "'codec_chunk_frames' is not an option of Qwen2.5-Omni"),
        ("decode_enable_tf32: fast", "decode_enable_tf32 must be true or false, not 'fast'"),
        ("max_inflight: 0", "max_inflight must be a whole number of at least 1, not 0"),
    ],
)
def test_wrong_option_of_the_edge_names_key_and_value(
    text: str, message: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """E34."""
    with pytest.raises(ConfigError) as caught:
        resolve("qwen2_5_omni", overlay(FILE, edge(text)))

    assert message in caught.value.message
    assert caught.value.where == "connectors.c.extra"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (option("codec_opening: 1"), "codec_opening must be true or false, not 1", ""),
        (option("codec_openning: true"), "'codec_openning' is not an option of the talker", "did you mean codec_opening?"),
        (option("codec_opening: true", 2), "'codec_opening' is not an option of the code2wav", "remove it"),
    ],
    ids=["a number", "misspelt", "another stage"],
)
def test_wrong_option_of_a_stage_is_named_with_its_place(
    text: str, message: str, hint: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("qwen2_5_omni", overlay(FILE, text))

    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "mine.yaml:2:" in caught.value.where


def test_options_that_there_are_reach_their_stage(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    stages = resolve(
        "qwen2_5_omni", overlay(FILE, option("codec_opening: true, ascend_scheduler_config: {enabled: true}"))
    ).stages

    assert stages[1].engine_args["additional_config"]["codec_opening"] is True


@pytest.mark.parametrize(("dtype", "is_said"), [("bfloat16", True), ("float32", False), ("auto", False)])
def test_a_precision_that_the_decoder_does_not_have_is_said(
    dtype: str, is_said: bool, resolve: Resolve, overlay: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        resolve("qwen2_5_omni", overlay(FILE, f"dtype: {dtype}\n"))

    assert [f"float32, not in {dtype}" in record.getMessage() for record in caplog.records if record.name == LOGGER] == [
        True
    ] * is_said


def test_overrides_without_effect_are_warned_about(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    warnings = resolve("qwen2_5_omni", overlay(FILE, "stages: [{stage_id: 2, hf_overrides: {c: 1}}]\n")).warnings

    assert "stage 2 (code2wav): hf_overrides: c: no effect" in warnings


def test_a_precision_that_there_is_not_is_refused(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"stages.0.dtype: input should be 'auto'.* \(got 'flaot32'\)"):
        resolve("qwen2_5_omni", overlay(FILE, "stages: [{stage_id: 2, dtype: flaot32}]\n"))
