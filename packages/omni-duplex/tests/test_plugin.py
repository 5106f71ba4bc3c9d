"""The plugin loads, offers its command, and costs nothing."""

from __future__ import annotations

import subprocess
import sys

from omni_core.plugins import PluginManager
from omni_core.target import load_target
from omni_duplex import hookspecs, plugin
from omni_duplex.model import DuplexModel


def test_the_plugin_loads_and_offers_its_command_and_its_model() -> None:
    manager = PluginManager()
    manager.add_hookspecs(hookspecs)

    manager.add(plugin, "omni-duplex", "0.1.0")

    (report,) = manager.reports
    assert report.status == "ok", report.reason
    assert {"omni_commands", "omni_duplex_models", "omni_pipelines", "omni_tiny_models"} <= set(report.hooks)
    for target in plugin.omni_duplex_models().values():
        assert issubclass(load_target(target), DuplexModel)


def test_the_plugin_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "transformers", "numpy", "omni_server")
    code = f"import sys, omni_duplex.plugin; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
