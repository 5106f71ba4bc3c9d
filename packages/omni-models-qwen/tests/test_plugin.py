from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedEdge
from omni_core.target import find_module
from omni_models_qwen import plugin


def test_plugin_offers_the_pipeline_with_all_its_targets() -> None:
    pipeline = next(pipeline for pipeline in plugin.omni_pipelines() if pipeline.model_type == "qwen3_tts")

    architectures = plugin.omni_architectures()

    for stage in pipeline.stages:
        find_module(architectures[pipeline.architecture(stage.stage_id)])
        for target in stage.targets.values():
            find_module(target)
    assert pipeline.speech is not None
    find_module(pipeline.speech)


def test_default_deploy_files_are_in_the_offered_folder() -> None:
    (folder,) = plugin.omni_deploy_dirs()

    names = [pipeline.default_deploy_config_name for pipeline in plugin.omni_pipelines()]

    assert "qwen3_tts.yaml" in names
    assert all((folder / name).is_file() for name in names if name is not None)


def test_plugin_names_the_configuration_and_the_tiny_checkpoints() -> None:
    tiny = {entry.name: entry for entry in plugin.omni_tiny_models()}

    find_module(plugin.omni_hf_configs()["qwen3_tts"])
    for entry in tiny.values():
        find_module(entry.target)
    assert tiny["qwen3_tts"].variants == ("custom_voice", "base", "voice_design")
    assert tiny["qwen3_omni_moe"].variants == ("instruct", "thinking")


def test_states_are_captured_of_vllms_thinkers_alone() -> None:
    name = "Qwen3OmniMoeThinkerForConditionalGeneration"
    theirs = type(name, (), {"__module__": "vllm.model_executor.models.qwen3_omni_moe_thinker"})

    found = plugin.omni_model_capabilities(theirs)

    assert found is not None
    assert found.capture is not None
    find_module(found.capture.target)
    assert plugin.omni_model_capabilities(type(name, (), {"__module__": "another.package"})) is None
    assert plugin.omni_model_capabilities(type("Other", (), {"__module__": "vllm.models"})) is None


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, omni_models_qwen.plugin; "
        "print(sorted({'torch', 'vllm', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_preparing_a_request_in_the_server_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, omni_models_qwen.qwen3_tts.speech, omni_models_qwen.qwen3_tts.handoff, omni_models_qwen.qwen3_tts.input; "
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def _stages(pipeline: str, **options: object) -> tuple[SimpleNamespace, ...]:
    edge = ResolvedEdge(0, 1, "shm", "m:C", stream=options)
    facts: dict[str, object] = {"pipeline": pipeline, "engine_args": {}}
    return SimpleNamespace(**facts, outputs=(edge,)), SimpleNamespace(**facts, outputs=())


def test_a_wrong_chunk_option_is_an_error_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="did you mean codec_chunk_frames"):
        plugin.omni_config_resolved(_stages("qwen3_tts", codec_chunk_frame=25))  # type: ignore[arg-type]


def test_a_codec_that_hears_nothing_before_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="codec_left_context_frames 0 would leave a gap"):
        plugin.omni_config_resolved(_stages("qwen3_omni_moe", codec_left_context_frames=0))  # type: ignore[arg-type]


def test_options_of_other_pipelines_are_theirs() -> None:
    plugin.omni_config_resolved(_stages("another", codec_chunk_frame=25))  # type: ignore[arg-type]
