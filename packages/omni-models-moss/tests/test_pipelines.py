"""The pipelines of this package (section 25), how a checkpoint chooses one, and what cannot be started yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omni_core.client import AsyncOmni
from omni_core.errors import DependencyError
from omni_core.pipeline import ExecutionType
from omni_core.stage import ResolvedPipeline
from omni_core.target import load_target
from omni_models_moss import plugin

Resolve = Callable[..., ResolvedPipeline]

PIPELINES = {pipeline.model_type: pipeline for pipeline in plugin.omni_pipelines()}


@pytest.mark.parametrize(
    ("key", "name", "constraints"),
    [
        ("moss_tts_local", "moss_tts_local", {"detokenize": False, "stop_token_ids": [151645]}),
        ("moss_tts_delay", "moss_tts", {"detokenize": False}),
        ("moss_tts_realtime", "moss_tts_realtime", {"detokenize": False}),
    ],
)
def test_topology_is_that_of_the_contract(key: str, name: str, constraints: dict[str, Any]) -> None:
    """RG-15; the name of the first stage begins with `moss_tts`, by which a server knows what it speaks."""
    talker, codec = PIPELINES[key].stages

    assert (talker.model_stage, codec.model_stage) == (name, f"{name}_codec")
    assert (talker.execution_type, codec.execution_type) == (ExecutionType.LLM_AR, ExecutionType.LLM_GENERATION)
    assert (talker.engine_output_type, codec.engine_output_type) == ("latent", "audio")
    assert (talker.final_output, codec.final_output, codec.final_output_type) == (False, True, "audio")
    assert (talker.input_sources, codec.input_sources) == ((), (0,))
    assert (talker.retains_state_across_chunks, codec.retains_state_across_chunks) == (False, True)
    assert (dict(talker.sampling_constraints), dict(codec.sampling_constraints)) == (constraints, {"detokenize": True})


def test_only_local_has_the_native_data_plane() -> None:
    """MO-05, DF-08."""
    native = [key for key, found in PIPELINES.items() if all(stage.supports_native_mrv2_data_plane for stage in found.stages)]

    assert native == ["moss_tts_local"]


@pytest.mark.parametrize("key", PIPELINES)
def test_every_target_can_be_loaded(key: str) -> None:
    for stage in PIPELINES[key].stages:
        for target in stage.targets.values():
            assert callable(load_target(target))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "moss_tts_local"}, "moss_tts_local"),
        ({"architectures": ["MossTTSLocalModel"]}, "moss_tts_local"),
        ({"model_type": "moss_tts_delay"}, "moss_tts_delay"),
        ({"architectures": ["MossTTSDelayModel"]}, "moss_tts_delay"),
        ({"model_type": "moss_tts_realtime"}, "moss_tts_realtime"),
    ],
    ids=str,
)
def test_checkpoint_chooses_its_pipeline(config: dict[str, Any], key: str, resolve: Resolve) -> None:
    """RG-05, RG-07, RG-15."""
    assert resolve(**config).config.model_type == key


@pytest.mark.parametrize(
    ("key", "architecture"),
    [
        ("moss_tts_delay", "MossTTSDelayModel"),
        ("moss_tts_realtime", "MossTTSRealtime"),
    ],
)
def test_start_of_a_stage_that_nobody_implements_ends_before_any_process(key: str, architecture: str, resolve: Resolve) -> None:
    resolved = resolve(model_type=key)

    with pytest.raises(DependencyError, match=f"this version cannot run pipeline '{key}'") as caught:
        AsyncOmni.from_resolved(resolved)

    assert f"{architecture} of stage 0" in caught.value.message


@pytest.mark.engine
def test_local_can_be_started(resolve: Resolve) -> None:
    talker, codec = resolve(platform="cpu").stages

    assert (talker.runner, codec.runner) != ("", "")
    assert talker.architecture_target == "omni_models_moss.local.talker:MossTTSLocalTalker"
    assert codec.architecture_target == "omni_models_moss.code2wav:MossTTSCodecDecoder"
    assert all(callable(load_target(stage.architecture_target or "")) for stage in (talker, codec))
