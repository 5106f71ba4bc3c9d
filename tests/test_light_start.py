"""Commands that only look must not load an engine: `import vllm` alone costs many seconds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ["torch", "vllm", "transformers", "diffusers", "starlette", "uvicorn"]
PLUGINS = [
    target
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
    for group in ("omni", "omni.hookspecs")
    for target in tomllib.loads(path.read_text())["project"].get("entry-points", {}).get(group, {}).values()
]


def _heavy_modules_after(code: str) -> list[str]:
    script = f"{code}\nimport sys\nprint('HEAVY', *sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "HEAVY"
    return last[1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["plugins"],
        ["plugins", "--json"],
        ["pipelines"],
        ["serve", "--help"],
        ["bench", "serve", "--help"],
        ["tiny", "--help"],
        ["config", "--help"],
        ["config", "schema"],
        ["config", "lint", "qwen3_tts.yaml"],
    ],
    ids=" ".join,
)
def test_a_command_that_only_looks_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from omni_core.cli import main
sys.argv = ["omni", *{arguments}]
try:
    code = main()
except SystemExit as end:
    code = end.code
if code:
    raise RuntimeError(f"exit code {{code}}")
"""

    assert _heavy_modules_after(code) == []


@pytest.mark.parametrize("module", PLUGINS)
def test_a_plugin_module_loads_nothing_heavy(module: str) -> None:
    assert _heavy_modules_after(f"import {module}") == []


def test_the_public_names_of_core_load_nothing_heavy() -> None:
    assert _heavy_modules_after("import omni_core\nfor name in omni_core.__all__: getattr(omni_core, name)") == []
