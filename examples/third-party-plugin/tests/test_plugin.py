"""Omni accepts the plugin, and every record that it offers can be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omni_plugin_echo import plugin
from omni_plugin_echo.pipeline import ECHO

from omni_core.connector import Connector
from omni_core.plugins import PluginManager
from omni_core.runner import LightModel, StageRunner
from omni_core.target import load_target


@pytest.fixture
def manager() -> PluginManager:
    manager = PluginManager()
    manager.load_core()
    manager.add(plugin, "omni-plugin-echo", "0.1.0")
    return manager


def test_the_plugin_is_accepted(manager: PluginManager) -> None:
    (report,) = [report for report in manager.reports if report.name == "omni-plugin-echo"]

    assert report.status == "ok", report.reason
    assert len(report.hooks) == 7


def test_every_target_can_be_loaded() -> None:
    kinds = {
        plugin.omni_architectures()["EchoTone"]: LightModel,
        next(iter(plugin.omni_connectors())).target: Connector,
        "omni_plugin_echo.speller:Speller": StageRunner,
    }
    for target, base in kinds.items():
        kind = load_target(target)
        assert isinstance(kind, type)
        assert issubclass(kind, base)
    targets = [ECHO.speech, *(target for stage in ECHO.stages for target in stage.targets.values())]
    targets += [entry.target for entry in (*plugin.omni_commands(), *plugin.omni_tiny_models())]
    for target in targets:
        assert target is not None
        load_target(target)


def test_the_deploy_file_is_bundled() -> None:
    (folder,) = plugin.omni_deploy_dirs()

    assert ECHO.default_deploy_config_name in [file.name for file in folder.iterdir()]


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, omni_plugin_echo.plugin; print([m for m in ('torch', 'vllm', 'pydantic') if m in sys.modules])"
    source = Path(plugin.__file__).parents[1]

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env={"PYTHONPATH": str(source)}
    )

    assert done.stdout.strip() == "[]"
