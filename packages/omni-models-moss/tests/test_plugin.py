"""The plugin loads, offers pipelines and deploy files, and costs nothing."""

from __future__ import annotations

import subprocess
import sys

from omni_core.plugins import PluginManager
from omni_models_moss import plugin


def test_the_plugin_loads_and_offers_pipelines_and_deploy_files() -> None:
    manager = PluginManager()

    manager.add(plugin, "omni-models-moss", "0.1.0")

    (report,) = manager.reports
    assert report.status == "ok", report.reason
    assert set(report.hooks) == {
        "omni_pipelines",
        "omni_architectures",
        "omni_hf_configs",
        "omni_deploy_dirs",
        "omni_config_resolved",
        "omni_tiny_models",
    }


def test_the_plugin_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "transformers", "numpy", "omni_server")
    code = f"import sys, omni_models_moss.plugin; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
