"""Plugins that fail, each in its own way, beside one that works; and plugins met in any order."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from omni_core.hookspecs import hookimpl
from omni_core.plugins import HOOKSPECS, PLUGINS, PluginManager

HEAD = "from omni_core import ExecutionType, PipelineConfig, StagePipelineConfig, hookimpl\n"
PIPELINE = """
@hookimpl
def omni_pipelines():
    stage = StagePipelineConfig(
        stage_id=0, model_stage="only", execution_type=ExecutionType.LLM_GENERATION, model_arch="Only", final_output=True
    )
    return [PipelineConfig(model_type="{key}", stages=(stage,))]
"""
BAD = {
    "aaa-signature": (HEAD + "@hookimpl\ndef omni_pipelines(weather): return []\n", "broken", "weather"),
    "bbb-import": ("raise ImportError('libfoo.so.3: cannot open')\n", "broken", "libfoo.so.3"),
    "ccc-exits": ("raise SystemExit(3)\n", "broken", "SystemExit: 3"),
    "ddd-typo": (HEAD + "@hookimpl\ndef omni_piplines(): return []\n", "broken", "omni_piplines"),
    "eee-stale": ("raise AssertionError('must not be imported')\n", "incompatible", "omni-core<0.1"),
    "fff-raises": (HEAD + "@hookimpl\ndef omni_commands(): raise KeyError('lost')\n", "broken", "omni_commands"),
}


@pytest.fixture
def site(tmp_path: Path, plant: Callable[..., None]) -> Path:
    """A folder for planted distributions, with the good one in it."""
    folder = tmp_path / "site"
    plant(folder, "good-plugin", HEAD + PIPELINE.format(key="good_pipeline"))
    return folder


def _omni(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_core", *arguments]
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


def _reports(site: Path) -> dict[str, dict[str, Any]]:
    listed = _omni(site, "plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    return {report["name"]: report for report in json.loads(listed.stdout)}


@pytest.fixture
def bad_site(site: Path, plant: Callable[..., None]) -> Path:
    """The folder with every bad plugin beside the good one."""
    for name, (code, _, _) in BAD.items():
        plant(site, name, code, "omni-core<0.1" if name == "eee-stale" else "omni-core>=0.1")
    return site


def test_each_bad_plugin_is_reported_with_its_own_reason(bad_site: Path) -> None:
    reports = _reports(bad_site)

    for name, (_, status, reason) in BAD.items():
        assert (name, reports[name]["status"]) == (name, status)
        assert reason in reports[name]["reason"]
    others = {name: report["status"] for name, report in reports.items() if name not in BAD}
    assert {"good-plugin", "omni-server", "omni-models-qwen"} <= set(others)
    assert set(others.values()) == {"ok"}


def test_the_good_plugin_works_beside_bad_ones(bad_site: Path) -> None:
    listed = _omni(bad_site, "pipelines")

    assert listed.returncode == 0, listed.stderr
    assert "good_pipeline" in listed.stdout
    assert "qwen3_tts" in listed.stdout


def test_strict_makes_bad_plugins_an_error(site: Path, bad_site: Path) -> None:
    assert _omni(bad_site, "plugins", "--strict").returncode != 0


def test_strict_is_content_with_good_plugins(site: Path) -> None:
    done = _omni(site, "plugins", "--strict")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_clash_names_both_distributions(site: Path, plant: Callable[..., None]) -> None:
    plant(site, "rival-plugin", HEAD + PIPELINE.format(key="good_pipeline"))

    done = _omni(site, "pipelines")

    assert done.returncode == 2
    assert "good-plugin" in done.stderr
    assert "rival-plugin" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_blocked_plugin_is_not_imported(site: Path, plant: Callable[..., None]) -> None:
    plant(site, "blocked-plugin", "raise AssertionError('must not be imported')\n")

    env = {**os.environ, "PYTHONPATH": str(site), "OMNI_DISABLE_PLUGINS": "blocked-plugin"}
    command = [sys.executable, "-m", "omni_core", "plugins", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)

    assert {r["name"]: r["status"] for r in json.loads(done.stdout)}["blocked-plugin"] == "blocked"


def test_a_distribution_met_twice_on_the_path_is_one_plugin(site: Path, tmp_path: Path, plant: Callable[..., None]) -> None:
    plant(tmp_path / "again", "good-plugin", HEAD + PIPELINE.format(key="good_pipeline"))

    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{tmp_path / 'again'}"}
    command = [sys.executable, "-m", "omni_core", "plugins", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)

    assert [r["status"] for r in json.loads(done.stdout) if r["name"] == "good-plugin"] == ["ok"]


def _offers(manager: PluginManager) -> dict[str, set[tuple[str, str]]]:
    hooks = ["omni_pipelines", "omni_architectures", "omni_hf_configs", "omni_connectors", "omni_commands", "omni_tiny_models"]
    return {
        hook: {(name, repr(item)) for name, items in manager.collect(hook) for item in items}
        for hook in [*hooks, "omni_platforms"]
    }


@pytest.mark.parametrize("reverse", [False, True], ids=["sorted", "reversed"])
def test_the_order_of_plugins_changes_nothing(reverse: bool) -> None:
    entries = [entry for entry in metadata.entry_points(group=PLUGINS) if entry.dist and entry.dist.name.startswith("omni-")]
    expected = PluginManager()
    expected.load_core()
    expected.load_installed()

    manager = PluginManager()
    manager.load_core()
    for entry in metadata.entry_points(group=HOOKSPECS):
        manager.add_hookspecs(entry.load())
    for entry in sorted(entries, key=lambda entry: entry.name, reverse=reverse):
        assert entry.dist is not None
        manager.add(importlib.import_module(entry.value), entry.dist.name)

    assert {report.status for report in manager.reports} == {"ok"}
    assert _offers(manager) == _offers(expected)


def test_cores_own_defaults_come_last_in_any_order() -> None:
    class Chooses:
        @hookimpl
        def omni_stage_runner(self, stage: Any, platform: Any) -> str:
            return "mine"

    early, late = PluginManager(), PluginManager()
    early.add(Chooses(), "chooser")
    early.load_core()
    late.load_core()
    late.add(Chooses(), "chooser")

    for manager in (early, late):
        assert manager.first("omni_stage_runner", stage=None, platform=None) == ("chooser", "mine")
