"""Fake pipelines of three, two and one stages, and a function that resolves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_core.connector import ConnectorEntry
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import ModelInfo
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager, make_plugin

CHUNKS = "omni_core.testing.fakes:chunk_codes"
FULL = "omni_core.testing.fakes:all_codes"


def talker(stage_id: int = 0, *sources: int, **fields: Any) -> StagePipelineConfig:
    values = {
        "model_stage": "talker",
        "input_sources": sources,
        "async_chunk_process_next_stage_input_func": CHUNKS,
        "custom_process_next_stage_input_func": FULL,
        **fields,
    }
    return StagePipelineConfig(stage_id=stage_id, **values)


def vocoder(stage_id: int, *sources: int, **fields: Any) -> StagePipelineConfig:
    values = {
        "model_stage": "vocoder",
        "execution_type": ExecutionType.LLM_GENERATION,
        "input_sources": sources,
        "final_output": True,
        "final_output_type": "audio",
        "model_arch": "FakeVocoder",
        **fields,
    }
    return StagePipelineConfig(stage_id=stage_id, **values)


def pipelines() -> list[PipelineConfig]:
    """Return the pipelines of the fake plugin."""
    return [
        PipelineConfig(
            model_type="three",
            model_arch="FakeModel",
            stages=(talker(0, model_stage="thinker", final_output=True), talker(1, 0), vocoder(2, 1)),
        ),
        PipelineConfig(
            model_type="two",
            model_arch="FakeModel",
            stages=(talker(sampling_constraints={"stop_token_ids": [2150], "detokenize": False}), vocoder(1, 0)),
            default_deploy_config_name="two.yaml",
        ),
        PipelineConfig(
            model_type="whole",
            model_arch="FakeModel",
            stages=(talker(async_chunk_process_next_stage_input_func=None), vocoder(1, 0)),
        ),
        PipelineConfig(model_type="one", model_arch="FakeModel", stages=(talker(final_output=True),)),
        PipelineConfig(
            model_type="fused", model_arch="FakeModel", stages=(talker(final_output=True),), single_stage_streams=True
        ),
        PipelineConfig(
            model_type="picture",
            model_arch="FakeModel",
            stages=(
                talker(async_chunk_process_next_stage_input_func=None),
                StagePipelineConfig(
                    stage_id=1,
                    model_stage="dit",
                    execution_type=ExecutionType.DIFFUSION,
                    input_sources=(0,),
                    final_output=True,
                    model_arch="FakeVocoder",
                ),
            ),
        ),
    ]


CONNECTORS = [
    ConnectorEntry("SharedMemoryConnector", "omni_core.testing.fakes:FolderConnector"),
    ConnectorEntry(
        "StoreConnector", "omni_core.testing.fakes:FolderConnector", options="omni_core.deploy.schema:DuplexSession"
    ),
]


class Deployments:
    """Write deploy files and resolve fake models with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        self.write("bundle/two.yaml", "stages: []\n")
        self.hooks: dict[str, Any] = {
            "omni_pipelines": pipelines(),
            "omni_connectors": CONNECTORS,
            "omni_deploy_dirs": [self.bundle],
            "omni_architectures": {
                "FakeModel": "omni_core.testing.fakes:SumVocoder",
                "FakeVocoder": "omni_core.testing.fakes:SumVocoder",
            },
        }

    def write(self, name: str, text: str) -> str:
        """Write a file and return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def resolve(
        self,
        model_type: str = "two",
        text: str | None = None,
        *,
        platform: str = "cpu",
        overrides: Mapping[Any, Any] | str | None = None,
        files: list[str] | None = None,
        **flags: Any,
    ) -> ResolvedPipeline:
        """Resolve a model of this type; `text` is a deploy file."""
        names = files if text is None else [self.write("my.yaml", text)]
        return resolve_deployment(
            ModelInfo(model_type, self.folder, {"model_type": model_type}),
            deploy_config=names,
            flags=flags,
            stage_overrides=overrides,
            manager=make_manager({"acme": make_plugin(**self.hooks)}),
            platform=platform,
        )


@pytest.fixture
def deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployments:
    """Return a folder of deploy files and fake models; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    return Deployments(tmp_path)


Resolve = Callable[..., ResolvedPipeline]


@pytest.fixture
def resolve(deployments: Deployments) -> Resolve:
    """Return `Deployments.resolve`."""
    return deployments.resolve
