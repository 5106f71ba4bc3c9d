"""The import contracts of pyproject.toml catch what they are there for: each violation is planted in a copy of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of every package's sources, side by side."""
    folder = tmp_path_factory.mktemp("sources")
    for source in ROOT.glob("packages/*/src"):
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _lint(sources: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT_IMPORTS), "--no-logo", "--no-cache", "pyproject.toml"]
    env = {**os.environ, "PYTHONPATH": str(sources)}
    return subprocess.run(command, cwd=sources, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_sources_keep_every_contract(sources: Path) -> None:
    done = _lint(sources)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "violation", "contract"),
    [
        ("omni_core/engine/orchestrator.py", "import omni_server", "core knows no server"),
        ("omni_core/registry.py", "import omni_models_qwen", "core knows no server and no model"),
        ("omni_connectors/plugin.py", "import omni_server", "Packages depend in one direction"),
        ("omni_models_qwen/plugin.py", "import omni_server.app", "Model packages do not import the server"),
        ("omni_core/engine/light_runner.py", "import vllm.v1", "Only the bridge touches vLLM"),
        ("omni_core/plugins.py", "def late():\n    import torch", "import nothing heavy"),
        ("omni_models_qwen/qwen3_tts/pipeline.py", "import vllm", "import nothing heavy"),
        ("omni_server/app.py", "import transformers", "without torch and transformers"),
    ],
)
def test_a_planted_violation_is_caught(sources: Path, module: str, violation: str, contract: str) -> None:
    path = sources / module
    before = path.read_text()
    path.write_text(f"{before}\n{violation}\n")

    try:
        done = _lint(sources)
    finally:
        path.write_text(before)

    assert done.returncode == 1
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert len(broken) == 1
    assert contract in broken[0]
    assert module.removesuffix(".py").replace("/", ".") in done.stdout
