"""A frozen deployment is the same deployment, whatever it was made of."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.connector import ConnectorEntry
from omni_core.deploy.freeze import freeze, frozen_document, frozen_text
from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.yaml_text import to_yaml
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.plugins import PluginManager
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager, make_plugin

FAKES = "omni_core.testing.fakes"
MODEL = ModelInfo("fake", Path("/nowhere"), {"model_type": "fake"})
PIPELINE = PipelineConfig(
    model_type="fake",
    model_arch="Fake",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="talker",
            custom_process_next_stage_input_func=f"{FAKES}:all_codes",
            async_chunk_process_next_stage_input_func=f"{FAKES}:chunk_codes",
            sampling_constraints={"stop_token_ids": [2150], "detokenize": False},
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="vocoder",
            execution_type=ExecutionType.LLM_GENERATION,
            input_sources=(0,),
            final_output=True,
        ),
    ),
)


def manager(**hooks: Any) -> PluginManager:
    given = {
        "omni_pipelines": [PIPELINE],
        "omni_architectures": {"Fake": f"{FAKES}:SumVocoder"},
        "omni_connectors": [ConnectorEntry("SharedMemoryConnector", f"{FAKES}:FolderConnector")],
        **hooks,
    }
    return make_manager({"acme": make_plugin(**given)})


PLUGINS = manager()


def resolve(
    document: Mapping[str, Any], *, overrides: Any = None, plugins: PluginManager = PLUGINS, **flags: Any
) -> ResolvedPipeline:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "my.yaml")
        file.write_text(to_yaml(document))
        return resolve_deployment(
            MODEL, deploy_config=file, flags=flags, stage_overrides=overrides, manager=plugins, platform="cpu"
        )


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "stop": st.lists(_TEXT, max_size=2),
        "stop_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "detokenize": st.booleans(),
        "extra_args": st.dictionaries(st.sampled_from("ab"), st.integers() | _TEXT, max_size=2),
        "seed": st.none(),
    },
)
_STAGE = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 64),
        "gpu_memory_utilization": st.none() | st.floats(0.01, 1),
        "enforce_eager": st.booleans(),
        "model_runner": st.sampled_from(["v1", "v2"]),
        "num_replicas": st.integers(1, 3),
        "devices": st.none() | st.sampled_from(["0", "7"]),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), _TEXT.filter(lambda text: "\0" not in text), max_size=2),
        "compilation_config": st.dictionaries(st.sampled_from("xy"), st.integers() | st.lists(_TEXT, max_size=2), max_size=2),
        "engine_extras": st.dictionaries(st.sampled_from(["seed", "dtype"]), st.integers(0, 5), max_size=2),
        "default_sampling_params": _SAMPLING,
        "limit_mm_per_prompt": st.dictionaries(st.sampled_from(["image"]), st.integers(0, 3)),
    },
)
_CONNECTORS = st.sampled_from(
    [
        {},
        {"to_stage_1": "shm"},
        {"to_stage_1": {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": 25, "codec_chunk_ramp": "1,2"}}},
        {"to_stage_1": {"name": "SharedMemoryConnector"}},
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    stages = [{"stage_id": 0, "output_connectors": draw(_CONNECTORS), **draw(_without_devices())}]
    stages.append({"stage_id": 1, **draw(_without_devices())})
    section = {"stages": [{"stage_id": draw(st.sampled_from([0, 1])), **draw(_without_devices())}]}
    return {
        "async_chunk": draw(st.booleans()),
        "dtype": draw(st.none() | st.sampled_from(["auto", "float32"])),
        "cuda_mps": draw(st.none() | st.just(False)),
        "connectors": {"shm": {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": draw(st.integers(1, 9))}}},
        "stages": stages,
        "platforms": {"cpu": section},
    }


def _without_devices() -> st.SearchStrategy[dict[str, Any]]:
    """Leave out devices where there are replicas, which would need more of them."""
    return _STAGE.map(
        lambda entry: {key: value for key, value in entry.items() if key != "devices" or "num_replicas" not in entry}
    )


_FLAGS = st.fixed_dictionaries({}, optional={"max_model_len": st.integers(1, 99), "enforce_eager": st.booleans()})


@settings(max_examples=60, deadline=None)
@given(documents(), _FLAGS, st.dictionaries(st.sampled_from([0, 1]), _without_devices(), max_size=2))
def test_frozen_deployment_has_the_same_hash(document: Any, flags: Any, overrides: Any) -> None:
    try:
        resolved = resolve(document, overrides=overrides, **flags)
    except ConfigError:
        return  # values that do not go together are no deployment

    again = resolve(frozen_document(resolved, PLUGINS))

    assert again.config_hash == resolved.config_hash
    assert frozen_document(again, PLUGINS) == frozen_document(resolved, PLUGINS)


def test_frozen_text_says_what_it_was_made_from() -> None:
    resolved = resolve({"stages": [{"stage_id": 0, "max_num_seqs": 4}]})

    lines = frozen_text(resolved, PLUGINS).splitlines()

    assert lines[0].startswith("# fake on cpu, resolved by omni-core ")
    assert lines[1].startswith("# from ")
    assert lines[2] == f"# config hash {resolved.config_hash}"


def test_pooling_parameters_stay_pooling_parameters() -> None:
    document = {"stages": [{"stage_id": 0, "runner": "pooling", "default_pooling_params": {"dimensions": 4}}]}

    frozen = frozen_document(resolve(document), PLUGINS)

    assert frozen["stages"][0]["default_pooling_params"]["dimensions"] == 4
    assert "default_sampling_params" not in frozen["stages"][0]


def test_what_a_plugin_puts_above_files_cannot_be_frozen_and_is_named() -> None:
    def omni_platform_overrides(platform: Any, pipeline: Any) -> Any:
        return {"stages": [{"stage_id": 1, "max_num_seqs": 3}]}

    plugins = manager(omni_platform_overrides=omni_platform_overrides)
    resolved = resolve({}, plugins=plugins, max_num_seqs=5)

    with pytest.raises(ConfigError, match="stage 1 max_num_seqs would change"):
        freeze(resolved, MODEL, plugins)
    assert freeze(resolve({}, plugins=plugins), MODEL, plugins)
