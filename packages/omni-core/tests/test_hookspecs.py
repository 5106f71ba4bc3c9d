"""Every hook: called as core calls it, with a plugin that implements it; and every hook has its row in docs/hooks.md."""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core import hookspecs
from omni_core.capabilities import ModelCapabilities
from omni_core.commands import CommandEntry
from omni_core.connector import ConnectorEntry
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.platforms import CPU, Platform, PlatformEntry, current_platform
from omni_core.plugins import unique_by_name
from omni_core.registry import architectures, pipelines, resolve_pipeline
from omni_core.runner import RunnerEntry
from omni_core.testing.plugins import make_manager, make_plugin
from omni_core.tiny import TinyModelEntry

DOCS = Path(__file__).parents[3] / "docs" / "hooks.md"
STAGE = StagePipelineConfig(stage_id=0, model_stage="only", final_output=True)
PIPELINE = PipelineConfig(model_type="fake", model_arch="Fake", stages=(STAGE,))
NAMES = [name for name in dir(hookspecs) if name.startswith("omni_")]


def with_hook(**hooks: Any) -> Any:
    return make_manager({"acme": make_plugin(**hooks)})


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_has_its_row_and_its_test(name: str) -> None:
    if not DOCS.is_file():
        pytest.skip("docs/ is not beside the package")
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}` ")]

    assert len(rows) == 1
    assert all(cell.strip() for cell in rows[0].strip("|").split("|"))
    assert f"def test_hook_{name}(" in Path(__file__).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_says_when_it_is_called_and_in_which_process(name: str) -> None:
    text = inspect.getdoc(getattr(hookspecs, name)) or ""

    assert re.search(r"\bCalled\b", text)
    assert "process" in text


def test_hook_omni_pipelines() -> None:
    assert pipelines(with_hook(omni_pipelines=[PIPELINE]))["fake"].record is PIPELINE


def test_hook_omni_resolve_pipeline(make_model: Callable[..., ModelInfo]) -> None:
    manager = with_hook(omni_pipelines=[PIPELINE], omni_resolve_pipeline=lambda model: "fake")

    assert resolve_pipeline(make_model(model_type="other"), manager).distribution == "acme"


def test_hook_omni_architectures() -> None:
    assert architectures(with_hook(omni_architectures={"A": "m:A"})) == {"A": "m:A"}


def test_hook_omni_hf_configs() -> None:
    assert with_hook(omni_hf_configs={"fake": "m:FakeConfig"}).collect("omni_hf_configs") == [
        ("acme", {"fake": "m:FakeConfig"})
    ]


def test_hook_omni_deploy_dirs(tmp_path: Path) -> None:
    files = importlib.import_module("omni_core.deploy.files")
    (tmp_path / "fake.yaml").touch()

    assert files.Bundle(with_hook(omni_deploy_dirs=[tmp_path])).names == ("fake.yaml",)


def test_hook_omni_connectors() -> None:
    entry = ConnectorEntry("Pigeon", "m:Pigeon")

    assert unique_by_name(with_hook(omni_connectors=[entry]).collect("omni_connectors"), "connector")["Pigeon"].record is entry


def test_hook_omni_stage_runner() -> None:
    entry = RunnerEntry("mine", "m:Runner")

    def choose(platform: Platform) -> RunnerEntry | None:
        return entry if platform.name == "cpu" else None

    assert with_hook(omni_stage_runner=choose).first("omni_stage_runner", stage=None, platform=CPU) == ("acme", entry)


def test_hook_omni_model_capabilities() -> None:
    record = ModelCapabilities(native_data_plane=True)
    manager = with_hook(omni_model_capabilities=lambda model_class: record if model_class is int else None)

    assert manager.first("omni_model_capabilities", model_class=int) == ("acme", record)
    assert manager.first("omni_model_capabilities", model_class=str) == ("omni-core", ModelCapabilities())


def test_hook_omni_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.platforms.OTHER", Platform("other", "cpu"), raising=False)
    manager = with_hook(omni_platforms=[PlatformEntry("other", None, "omni_core.platforms:OTHER")])

    assert current_platform(manager, "other").name == "other"


def test_hook_omni_platform_overrides() -> None:
    manager = with_hook(omni_platform_overrides=lambda platform: {"dtype": "float32"} if platform is CPU else None)

    assert manager.collect("omni_platform_overrides", platform=CPU, pipeline=PIPELINE) == [("acme", {"dtype": "float32"})]


def test_hook_omni_commands() -> None:
    entry = CommandEntry("dance", "dance", "m:c")

    assert ("acme", [entry]) in with_hook(omni_commands=[entry]).collect("omni_commands")


def test_hook_omni_config_resolved() -> None:
    def refuse(stages: Any) -> None:
        raise ConfigError(f"{len(stages)} stages are too many")

    with pytest.raises(ConfigError, match="3 stages"):
        with_hook(omni_config_resolved=refuse).collect("omni_config_resolved", passing=(ConfigError,), stages=(1, 2, 3))


def test_hook_omni_tiny_models() -> None:
    entry = TinyModelEntry("fake", "a fake", "m:build")

    assert with_hook(omni_tiny_models=[entry]).collect("omni_tiny_models") == [("acme", [entry])]
