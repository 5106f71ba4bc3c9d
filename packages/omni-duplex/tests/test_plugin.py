"""The plugin loads, offers its command, and costs nothing."""

from __future__ import annotations

import subprocess
import sys

from omni_core.plugins import PluginManager
from omni_duplex import plugin


def test_the_plugin_loads_and_offers_its_command() -> None:
    manager = PluginManager()

    manager.add(plugin, "omni-duplex", "0.1.0")

    (report,) = manager.reports
    assert report.status == "ok", report.reason
    assert report.hooks == ("omni_commands",)


def test_the_plugin_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "transformers", "numpy", "omni_server")
    code = f"import sys, omni_duplex.plugin; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
