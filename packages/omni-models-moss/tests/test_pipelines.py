"""The pipelines of this package (section 25), and how a checkpoint chooses one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omni_connectors.plugin
from omni_core.deploy.memory import estimate_memory
from omni_core.deploy.resolve import resolve_deployment
from omni_core.pipeline import ExecutionType
from omni_core.platforms import CPU, CUDA
from omni_core.stage import ResolvedPipeline
from omni_core.target import load_target
from omni_core.testing.plugins import make_manager
from omni_models_moss import plugin
from omni_models_moss.delay.checkpoint import Kind, kind_of

Resolve = Callable[..., ResolvedPipeline]

PIPELINES = {pipeline.model_type: pipeline for pipeline in plugin.omni_pipelines()}


@pytest.mark.parametrize(
    ("key", "name", "constraints"),
    [
        ("moss_tts_local", "moss_tts_local", {"detokenize": False, "stop_token_ids": [151645]}),
        ("moss_tts_delay", "moss_tts", {"detokenize": False}),
        ("moss_tts_realtime", "moss_tts_realtime", {"detokenize": False}),
        ("moss_tts_nano", "moss_tts_nano", {"detokenize": False}),
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
    assert callable(load_target(PIPELINES[key].speech or ""))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "moss_tts_local"}, "moss_tts_local"),
        ({"architectures": ["MossTTSLocalModel"]}, "moss_tts_local"),
        ({"model_type": "moss_tts_delay"}, "moss_tts_delay"),
        ({"architectures": ["MossTTSDelayModel"]}, "moss_tts_delay"),
        ({"model_type": "moss_tts_realtime"}, "moss_tts_realtime"),
        # The released config.json has no model_type of its own.
        ({"architectures": ["MossTTSRealtime"], "rvq": 16, "text_pad": 151655}, "moss_tts_realtime"),
        ({"model_type": "moss_tts_nano"}, "moss_tts_nano"),
        ({"architectures": ["MossTTSNanoForCausalLM"], "auto_map": {}}, "moss_tts_nano"),
    ],
    ids=str,
)
def test_checkpoint_chooses_its_pipeline(config: dict[str, Any], key: str, resolve: Resolve) -> None:
    """RG-05, RG-07, RG-15."""
    assert resolve(**config).config.model_type == key


PUBLISHED = {
    "OpenMOSS-Team/MOSS-TTS-Local-Transformer-v1.5": "moss_tts_local",
    "OpenMOSS-Team/MOSS-TTS": "moss_tts_delay",
    "OpenMOSS-Team/MOSS-TTS-v1.5": "moss_tts_delay",
    "OpenMOSS-Team/MOSS-TTSD-v1.0": "moss_tts_delay",
    "OpenMOSS-Team/MOSS-VoiceGenerator": "moss_tts_delay",
    "OpenMOSS-Team/MOSS-SoundEffect": "moss_tts_delay",
    "OpenMOSS-Team/MOSS-TTS-Realtime": "moss_tts_realtime",
    "OpenMOSS-Team/MOSS-TTS-Nano": "moss_tts_nano",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_repository_resolves_from_the_cache_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is in the Hub's cache is found under the name, without the network."""
    config = {"model_type": PUBLISHED[name], "architectures": [PIPELINES[PUBLISHED[name]].model_arch]}
    commit = tmp_path / f"models--{name.replace('/', '--')}" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit / "config.json").write_text(json.dumps(config))
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    manager = make_manager({"omni-connectors": omni_connectors.plugin, "omni-models-moss": plugin})

    resolved = resolve_deployment(name, manager=manager, platform=CPU)

    assert resolved.config.model_type == PUBLISHED[name]


def test_what_a_checkpoint_is_for_follows_from_the_name_it_was_asked_for_by_or_has() -> None:
    assert [kind_of(name) for name in PUBLISHED if PUBLISHED[name] == "moss_tts_delay"] == [
        Kind.TTS,
        Kind.TTS,
        Kind.DIALOGUE,
        Kind.VOICE,
        Kind.SOUND,
    ]
    assert kind_of("/models/moss_tts_delay") is Kind.TTS
    assert kind_of("/models/mine", "OpenMOSS-Team/MOSS-SoundEffect") is Kind.SOUND
    assert kind_of("/models/moss_voice_generator", "OpenMOSS-Team/MOSS-TTS") is Kind.VOICE
    assert kind_of("/cache/models--OpenMOSS-Team--MOSS-TTSD-v1.0/snapshots/0123abcd") is Kind.DIALOGUE
    assert kind_of("snapshots/MOSS-SoundEffect") is Kind.SOUND


@pytest.mark.engine
@pytest.mark.parametrize("key", PIPELINES)
def test_every_pipeline_can_be_started(key: str, resolve: Resolve) -> None:
    talker, codec = resolve(platform="cpu", model_type=key).stages

    assert (talker.runner, codec.runner) != ("", "")
    assert codec.architecture_target == "omni_models_moss.code2wav:MossTTSCodecDecoder"
    assert all(callable(load_target(stage.architecture_target or "")) for stage in (talker, codec))


@pytest.mark.parametrize("key", PIPELINES)
def test_the_codec_has_a_folder_of_its_own(key: str) -> None:
    """So that `omni config memory` counts its weights and not the talker's."""
    talker, codec = PIPELINES[key].stages

    assert (talker.model_subdir, codec.model_subdir) == (None, "audio_tokenizer")


@pytest.mark.parametrize("key", PIPELINES)
def test_the_memory_of_both_stages_is_known_before_they_start(key: str, tiny: Callable[..., Path]) -> None:
    manager = make_manager({"omni-connectors": omni_connectors.plugin, "omni-models-moss": plugin})
    folder = tiny(key)

    (device,) = estimate_memory(resolve_deployment(folder, manager=manager, platform=CUDA), None)

    talker, codec = device.shares
    assert codec.what == "audio_tokenizer/"
    assert 0 < codec.weights < (folder / "audio_tokenizer" / "model.safetensors").stat().st_size
    assert talker.weights > codec.weights
