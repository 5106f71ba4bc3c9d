"""CPUs of a stage: the NUMA fields of a deploy file, checked for this machine and each replica (NU-01 to NU-04)."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
"""Variable with vLLM's start method; binding wraps a process that is spawned."""

_LISTS = ("numa_bind_nodes", "numa_bind_cpus")
_CPU_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


@dataclass(frozen=True)
class NumaHost:
    """What binding depends on in the machine where the stage will run."""

    system: str = "linux"
    """`sys.platform`."""
    numactl: str | None = None
    """Path of numactl."""
    cpus: frozenset[int] | None = None
    """CPUs that this process may use; None where that is not known, so that nothing is checked."""
    nodes: frozenset[int] | None = None
    """NUMA nodes that are online; None where that is not known."""

    @classmethod
    def read(cls, online: Path = Path("/sys/devices/system/node/online")) -> NumaHost:
        """Return what this machine has."""
        cpus = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        try:
            nodes = parse_cpu_list(online.read_text().strip())
        except (OSError, ValueError):  # no NUMA in this kernel
            nodes = None
        return cls(sys.platform, shutil.which("numactl"), cpus, nodes)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `2-3,8`, which is how numactl and the kernel write CPUs and nodes.

    Raises:
        ValueError: It has another form, or a range that descends.
    """
    if not _CPU_LIST.fullmatch(text):
        raise ValueError(f"{text!r} is no list of CPUs such as '2-3,8'")
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(f"the range {part!r} descends")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def check_numa(
    stage: StagePipelineConfig,
    arguments: Mapping[str, Any],
    sources: Mapping[str, Source],
    *,
    env: Mapping[str, str],
    ranks: int,
    num_replicas: int,
    platform: str,
    host: NumaHost,
) -> Outcome:
    """Check a stage's NUMA fields; binding sets vLLM's start method to spawn (NU-02).

    Args:
        stage: The topology.
        arguments: The stage's engine arguments.
        sources: Where they came from.
        env: The stage's `env`.
        ranks: Devices of one replica, which are numbered from 0 in each.
        num_replicas: Replicas of the stage.
        platform: Name of the platform; vLLM finds the nodes of devices itself only on `cuda`.
        host: The machine where the stage will run.

    Raises:
        ConfigError: A list is wrong, too short, or given without `numa_bind` (E28), or the machine cannot bind.
    """
    check = _Check(stage, arguments, sources)
    if not arguments.get("numa_bind"):
        for field in _LISTS:
            if arguments.get(field) is not None:
                check.refuse(field, "has no effect without numa_bind", "set numa_bind: true")
        return Outcome()
    check.nodes(host.nodes)
    shares = check.cpus(host.cpus)
    warnings = check.counts(ranks, num_replicas)
    if num_replicas > 1 and len(shares) == ranks:
        text = "every replica runs on the same CPUs; list those of all replicas to keep them apart"
        warnings = (*warnings, f"{place_of(sources, 'numa_bind_cpus')}: {stage_name(stage)}: {text}")
    check.machine(platform, host)
    if env.get(START_METHOD, "spawn") != "spawn":
        raise ConfigError(
            f"{stage_name(stage)}: numa_bind needs {START_METHOD}=spawn, and env sets {env[START_METHOD]!r}",
            where=place_of(sources, "env", START_METHOD),
            hint="remove it from env",
            param=f"env.{START_METHOD}",
        )
    return Outcome(env={} if START_METHOD in env else {START_METHOD: "spawn"}, warnings=warnings)


class _Check:
    """The parts of `check_numa`."""

    def __init__(self, stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
        self._stage = stage
        self._arguments = arguments
        self._sources = sources

    def refuse(self, field: str, message: str, hint: str) -> NoReturn:
        """Raise the error about a field."""
        raise ConfigError(
            f"{stage_name(self._stage)}: {field} {self._arguments.get(field)!r} {message}",
            where=place_of(self._sources, field),
            hint=hint,
            param=field,
        )

    def machine(self, platform: str, host: NumaHost) -> None:
        """Check that this machine can bind at all (NU-01, NU-02)."""
        if host.system != "linux":
            self.refuse("numa_bind", f"works on Linux, and this is {host.system}", "remove it")
        if host.numactl is None:
            self.refuse("numa_bind", "needs numactl, which is not installed", "install numactl, or remove numa_bind")
        if platform != "cuda" and self._arguments.get("numa_bind_nodes") is None:
            self.refuse("numa_bind", f"needs the nodes on {platform}, which cannot be detected there", "set numa_bind_nodes")

    def nodes(self, online: frozenset[int] | None) -> None:
        """Check the list of nodes."""
        nodes = self._arguments.get("numa_bind_nodes")
        if nodes is None:
            return
        if not nodes or min(nodes) < 0:
            self.refuse("numa_bind_nodes", "is not a list of nodes from 0", "list the node of each device")
        if online is not None and (missing := sorted(set(nodes) - online)):
            self.refuse("numa_bind_nodes", f"has node {missing[0]}, which is not here", f"the nodes are {_listed(online)}")

    def cpus(self, available: frozenset[int] | None) -> list[frozenset[int]]:
        """Check the lists of CPUs and return them."""
        texts = self._arguments.get("numa_bind_cpus")
        if texts is None:
            return []
        if not texts:
            self.refuse("numa_bind_cpus", "is empty", "list the CPUs of each device, such as ['0-3', '4-7']")
        found = []
        for text in texts:
            try:
                found.append(parse_cpu_list(text))
            except ValueError as error:
                self.refuse("numa_bind_cpus", f"cannot be read: {error}", "write CPUs as in ['0-3', '4,6-7']")
            if available is not None and (missing := sorted(found[-1] - available)):
                message = f"has CPU {missing[0]}, which this process cannot use"
                self.refuse("numa_bind_cpus", message, f"the CPUs are {_listed(available)}")
        return found

    def counts(self, ranks: int, num_replicas: int) -> tuple[str, ...]:
        """Check that the lists have an entry for each device (NU-02); too many is a warning."""
        warnings = []
        for field in _LISTS:
            entries = self._arguments.get(field)
            if entries is None or len(entries) in {ranks, ranks * num_replicas}:
                continue
            accepted = " or ".join(map(str, sorted({ranks, ranks * num_replicas})))
            if len(entries) < ranks:
                self.refuse(field, f"has {len(entries)} entries for {ranks} devices", f"list {accepted}, one for each device")
            text = f"{field} has {len(entries)} entries, of which {ranks} are used; it can list {accepted}"
            warnings.append(f"{place_of(self._sources, field)}: {stage_name(self._stage)}: {text}")
        return tuple(warnings)


def replica_numa(arguments: Mapping[str, Any], num_replicas: int, ranks: int) -> list[dict[str, Any]]:
    """Return the NUMA lists of each replica: its part of lists that cover all replicas, and otherwise the same for each."""
    found: list[dict[str, Any]] = [{} for _ in range(num_replicas)]
    for field in _LISTS:
        entries = arguments.get(field)
        if entries is None:
            continue
        is_pool = len(entries) == ranks * num_replicas
        for replica, own in enumerate(found):
            own[field] = list(entries[replica * ranks : (replica + 1) * ranks] if is_pool else entries)
    return found


def engine_core_cpus(arguments: Mapping[str, Any], *, in_process: bool) -> frozenset[int] | None:
    """Return the CPUs for the engine core itself; None where it keeps the wider binding to its NUMA nodes (NU-03).

    Args:
        arguments: The engine arguments of one replica.
        in_process: Whether the worker runs in the engine core (`uni`) or in a process of its own (`mp`).
    """
    lists = arguments.get("numa_bind_cpus")
    if not in_process or not arguments.get("numa_bind") or not lists:
        return None
    return parse_cpu_list(lists[0])


def _listed(numbers: frozenset[int]) -> str:
    """Return numbers as a list with ranges: `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
