"""A fake model of three stages with a bundled deploy file, and a function that runs `omni config`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_core import cli
from omni_core.connector import ConnectorEntry
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.testing.plugins import make_manager, make_plugin

FAKES = "omni_core.testing.fakes"


def _stage(stage_id: int, name: str, **fields: Any) -> StagePipelineConfig:
    values: dict[str, Any] = {
        "model_stage": name,
        "input_sources": (stage_id - 1,) if stage_id else (),
        "custom_process_next_stage_input_func": f"{FAKES}:all_codes",
        "async_chunk_process_next_stage_input_func": f"{FAKES}:chunk_codes",
        **fields,
    }
    return StagePipelineConfig(stage_id=stage_id, **values)


PIPELINE = PipelineConfig(
    model_type="fake",
    model_arch="Fake",
    default_deploy_config_name="fake.yaml",
    stages=(
        _stage(0, "thinker", final_output=True, sampling_constraints={"detokenize": True}),
        _stage(1, "talker"),
        _stage(
            2,
            "vocoder",
            execution_type=ExecutionType.LLM_GENERATION,
            final_output=True,
            async_chunk_process_next_stage_input_func=None,
            custom_process_next_stage_input_func=None,
        ),
    ),
)

BASE = """async_chunk: true
stages:
  - stage_id: 0
    gpu_memory_utilization: 0.9
    max_num_seqs: 32
  - stage_id: 1
    gpu_memory_utilization: 0.7
    max_num_seqs: 16
"""
"""The excerpt of the seed's worked example."""


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[str]:
        """Return the lines with single spaces."""
        return [" ".join(line.split()) for line in self.out.splitlines()]


Config = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Config:
    """Run `omni config` in a folder with the checkpoint MODEL and a bundle that holds fake.yaml."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "fake.yaml").write_text(BASE)
    (tmp_path / "MODEL").mkdir()
    (tmp_path / "MODEL" / "config.json").write_text('{"model_type": "fake"}')
    hooks: dict[str, Any] = {
        "omni_pipelines": [PIPELINE],
        "omni_architectures": {"Fake": f"{FAKES}:SumVocoder"},
        "omni_connectors": [ConnectorEntry("SharedMemoryConnector", f"{FAKES}:FolderConnector")],
        "omni_deploy_dirs": [bundle],
    }
    manager = make_manager({"acme": make_plugin(**hooks)})
    for name in ("show", "explain", "lint", "diff", "freeze", "memory", "schema"):
        monkeypatch.setattr(f"omni_core.commands.config.{name}.plugin_manager", lambda: manager, raising=False)
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, platform: str | None = "cuda") -> Result:
        where = [] if platform is None else ["--platform", platform]
        code = cli.main(["config", *arguments, *where])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
