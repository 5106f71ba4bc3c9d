from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("initial_codec_chunk_frames: 30", ("initial_codec_chunk_frames 30 is cut to codec_chunk_frames 25",)),
        ("codec_chunk_ramp: [4, 8]", ("codec_chunk_ramp ends with 8", "codec_chunk_frames 25")),
    ],
)
def test_sizes_that_fit_each_other_badly_are_warned_about(
    extra: str, words: tuple[str, ...], resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    text = f"connectors: {{connector_of_shared_memory: {{extra: {{{extra}}}}}}}\n"

    warnings = resolve("qwen3_omni_moe", overlay("qwen3_omni_moe.yaml", text)).warnings

    assert warnings
    assert all(word in warning for warning in warnings for word in words)


def test_option_of_a_stage_that_nobody_reads_is_refused(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    text = "stages: [{stage_id: 2, additional_config: {codec_left_context_frames: 50}}]\n"

    with pytest.raises(
        ConfigError, match="'codec_left_context_frames' is not an option of pipeline 'qwen3_omni_moe'"
    ) as caught:
        resolve("qwen3_omni_moe", overlay("qwen3_omni_moe.yaml", text))

    assert "mine.yaml:2:" in caught.value.where
    assert "connectors.NAME.extra" in caught.value.hint


def test_overrides_that_hold_for_a_part_or_nothing_are_warned_about(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    text = """
stages:
- {stage_id: 0, hf_overrides: {a: 1}}
- {stage_id: 1, hf_overrides: {b: 1, quantization_config: null}}
- {stage_id: 2, hf_overrides: {c: 1}}
"""

    warnings = resolve("qwen3_omni_moe", overlay("qwen3_omni_moe.yaml", text)).warnings

    assert warnings == (
        "stage 1 (talker): hf_overrides: b: for its decoder alone: ids and voices are those of config.json",
        "stage 2 (code2wav): hf_overrides: c: no effect",
    )
