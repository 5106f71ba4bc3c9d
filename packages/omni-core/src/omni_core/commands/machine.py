"""What can be wrong with the machine: devices, shared memory and programs that stages need, without loading a driver."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from omni_core.commands.packages import Finding

MIN_SHM_BYTES = 256 << 20
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MPS = "nvidia-cuda-mps-control"


@dataclass(frozen=True)
class Machine:
    """Where to look; tests look elsewhere."""

    dev: Path = Path("/dev")
    nodes: Path = Path("/sys/devices/system/node")

    @property
    def gpus(self) -> list[int]:
        """The numbers of the NVIDIA GPUs that have a device file."""
        found = [re.fullmatch(r"nvidia(\d+)", path.name) for path in self.dev.glob("nvidia*")]
        return sorted(int(match.group(1)) for match in found if match is not None)

    @property
    def numa_nodes(self) -> int:
        """How many NUMA nodes there are."""
        return sum(re.fullmatch(r"node\d+", path.name) is not None for path in self.nodes.glob("node*"))

    @property
    def shm_bytes(self) -> int | None:
        """The size of /dev/shm, None where there is none."""
        folder = self.dev / "shm"
        return shutil.disk_usage(folder).total if folder.is_dir() else None


def machine_facts(machine: Machine | None = None) -> dict[str, str]:
    """Return what a report of a fault should say about the machine."""
    machine = machine or Machine()
    size = machine.shm_bytes
    return {
        "gpus": ", ".join(map(str, machine.gpus)) or "none",
        _VISIBLE: os.environ.get(_VISIBLE, "not set"),
        "/dev/shm": "none" if size is None else f"{size >> 20} MiB",
        "numa nodes": str(machine.numa_nodes or "unknown"),
        "numactl": shutil.which("numactl") or "none",
        _MPS: shutil.which(_MPS) or "none",
    }


def machine_faults(platform: str, torch: str | None, machine: Machine | None = None) -> Iterator[Finding]:
    """Yield what keeps stages from running, or from running well.

    Args:
        platform: The platform that stages would run on.
        torch: Version of torch.
        machine: Where to look.
    """
    machine = machine or Machine()
    yield from _shared_memory(machine)
    yield from _devices(platform, torch, machine)
    if machine.numa_nodes > 1 and shutil.which("numactl") is None:
        text = f"numactl is missing on a machine of {machine.numa_nodes} NUMA nodes, so stages cannot set numa_bind"
        yield Finding("warning", text, "apt install numactl")
    if platform == "cuda" and shutil.which(_MPS) is None:
        text = f"{_MPS} is not on PATH, so stages that share a GPU run without MPS whatever cuda_mps says"
        yield Finding("warning", text, "install the driver's compute utilities, or set cuda_mps: false")


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    size = machine.shm_bytes
    if size is None:
        yield Finding("error", "there is no /dev/shm, which stages hand payloads on through", "mount a tmpfs on /dev/shm")
    elif size < MIN_SHM_BYTES:
        text = f"/dev/shm has {size >> 20} MiB, which is little for payloads and vLLM's workers"
        yield Finding("warning", text, "in a container, start it with --shm-size 1g or --ipc host")


def _devices(platform: str, torch: str | None, machine: Machine) -> Iterator[Finding]:
    gpus = machine.gpus
    visible = os.environ.get(_VISIBLE)
    if gpus and torch is not None and Version(torch).local == "cpu":
        text = f"there are {len(gpus)} NVIDIA GPU(s), but torch {torch} is a CPU build, so stages run on the CPU"
        yield Finding("warning", text, "install a CUDA build of torch and vllm, or set OMNI_PLATFORM=cpu to say so")
    if not gpus and platform == "cuda":
        text = "the platform is cuda, but no NVIDIA GPU has a device file"
        yield Finding("error", text, "install the driver, start the container with --gpus all, or set OMNI_PLATFORM=cpu")
    ids = [part.strip() for part in (visible or "").split(",") if part.strip()]
    missing = [part for part in ids if part.isdecimal() and int(part) not in gpus]
    if gpus and missing:
        text = f"{_VISIBLE} names device {', '.join(missing)}, but there are {', '.join(map(str, gpus))}"
        yield Finding("error", text, f"correct {_VISIBLE}, or unset it")
    if len(set(ids)) != len(ids):
        yield Finding("error", f"{_VISIBLE} names a device twice: {visible}", "name each once")
    if gpus and visible is not None and (not ids or ids[0] == "-1"):
        yield Finding("warning", f"{_VISIBLE} hides every GPU", f"unset {_VISIBLE} to use them")
