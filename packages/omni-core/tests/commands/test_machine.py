"""What `omni doctor` finds out about a machine: here a folder that looks like one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_core.commands.machine import Machine, machine_facts, machine_faults

MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeMachine:
    """Make a machine with these GPUs, NUMA nodes, programs and MiB of shared memory."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(gpus: tuple[int, ...] = (), nodes: int = 1, programs: tuple[str, ...] = (), shm_mib: int | None = 1024) -> Machine:
        for name in [*(f"nvidia{number}" for number in gpus), "nvidiactl", *(["shm"] if shm_mib is not None else [])]:
            (tmp_path / "dev" / name).mkdir(parents=True)
        for number in range(nodes):
            (tmp_path / "nodes" / f"node{number}").mkdir(parents=True)
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(total=(shm_mib or 0) << 20))
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
        return Machine(tmp_path / "dev", tmp_path / "nodes")

    return make


def found(machine: Machine, platform: str = "cpu", torch: str | None = None) -> list[str]:
    findings = list(machine_faults(platform, torch, machine))
    assert all(finding.way_out for finding in findings)
    return [f"{finding.level}: {finding.text}" for finding in findings]


def test_machine_in_order_has_no_faults(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = make_machine((0, 1), nodes=2, programs=("numactl", "nvidia-cuda-mps-control"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-abc")

    assert found(machine, "cuda", "2.13.0+cu130") == []
    assert machine_facts(machine) == {
        "gpus": "0, 1",
        "CUDA_VISIBLE_DEVICES": "1,GPU-abc",
        "/dev/shm": "1024 MiB",
        "numa nodes": "2",
        "numactl": "/usr/bin/numactl",
        "nvidia-cuda-mps-control": "/usr/bin/nvidia-cuda-mps-control",
    }


def test_little_or_no_shared_memory_is_found(make_machine: MakeMachine) -> None:
    assert found(make_machine(shm_mib=64)) == ["warning: /dev/shm has 64 MiB, which is little for payloads and vLLM's workers"]


def test_missing_shared_memory_is_an_error(make_machine: MakeMachine) -> None:
    assert found(make_machine(shm_mib=None)) == ["error: there is no /dev/shm, which stages hand payloads on through"]


def test_missing_numactl_matters_with_several_nodes(make_machine: MakeMachine) -> None:
    assert found(make_machine(nodes=2)) == [
        "warning: numactl is missing on a machine of 2 NUMA nodes, so stages cannot set numa_bind"
    ]


def test_missing_mps_matters_on_cuda(make_machine: MakeMachine) -> None:
    (text,) = found(make_machine((0,)), "cuda", "2.13.0")

    assert text.startswith("warning: nvidia-cuda-mps-control is not on PATH")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,5", "error: CUDA_VISIBLE_DEVICES names device 5, but there are 0, 1"),
        ("1,1", "error: CUDA_VISIBLE_DEVICES names a device twice: 1,1"),
        ("", "warning: CUDA_VISIBLE_DEVICES hides every GPU"),
        ("-1", "warning: CUDA_VISIBLE_DEVICES hides every GPU"),
    ],
    ids=["missing", "twice", "empty", "minus one"],
)
def test_visible_devices_are_checked(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, visible: str, expected: str
) -> None:
    machine = make_machine((0, 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert found(machine) == [expected]


def test_gpu_beside_a_cpu_build_of_torch_is_found(make_machine: MakeMachine) -> None:
    (text,) = found(make_machine((0,)), torch="2.13.0+cpu")

    assert text.startswith("warning: there are 1 NVIDIA GPU(s), but torch 2.13.0+cpu is a CPU build")


def test_cuda_without_a_gpu_is_an_error(make_machine: MakeMachine) -> None:
    assert found(make_machine(programs=("nvidia-cuda-mps-control",)), "cuda") == [
        "error: the platform is cuda, but no NVIDIA GPU has a device file"
    ]
