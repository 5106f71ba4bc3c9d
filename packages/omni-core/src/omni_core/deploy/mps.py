"""NVIDIA MPS: which daemons a deployment wants, decided before any process starts (MP-01 to MP-08).

Only the intent is decided here. The runtime that starts the daemons may still have to do without: it reports that with the
same `MpsReason`.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from omni_core.deploy.devices import parse_devices, replica_devices
from omni_core.deploy.outcome import place_of
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType
from omni_core.platforms import CUDA
from omni_core.stage import ResolvedStage

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
"""Variable that says which daemon a process uses."""
CONTROL = "nvidia-cuda-mps-control"
"""The program that starts a daemon and asks it questions."""

_VISIBLE = CUDA.visible_devices_env or ""


class MpsReason(StrEnum):
    """Why a configuration runs without MPS although it asks for it (MP-02)."""

    NO_PROGRAM = "no_program"
    """The control program is not there. Found by the runtime."""
    START_FAILED = "start_failed"
    """A daemon did not start. Found by the runtime."""
    NO_ANSWER = "no_answer"
    """A daemon, perhaps the operator's, did not answer `get_server_list`. Found by the runtime."""
    NOT_ONE_NUMERIC_GPU = "not_one_numeric_gpu"
    """A stage does not run on exactly one CUDA GPU that is given by its number."""
    PARALLEL_STAGE_INIT = "parallel_stage_init"
    """Stages start at the same time."""
    DIFFUSION_STAGE = "diffusion_stage"
    """A stage denoises."""
    REMOTE_STAGE = "remote_stage"
    """A stage runs on another machine."""


@dataclass(frozen=True)
class MpsRefusal:
    """One reason to do without MPS, with what a log line says about it."""

    reason: MpsReason
    message: str


@dataclass(frozen=True)
class MpsDaemon:
    """The daemon of one GPU."""

    gpu: int
    """Number of the GPU."""
    pipe_directory: str | None
    """Directory of the operator's daemon, which is used and never stopped (MP-04); None for a private one (MP-03)."""
    users: tuple[tuple[int, int], ...]
    """The stages that share it, in the order in which they start: (stage id, replica)."""


@dataclass(frozen=True)
class MpsPlan:
    """What a deployment wants of MPS."""

    wanted: bool = False
    """Whether `cuda_mps` is on."""
    daemons: tuple[MpsDaemon, ...] = ()
    """One for each GPU; empty where MPS is not used."""
    refusals: tuple[MpsRefusal, ...] = ()
    """Why it is not used although it is wanted; the runtime logs each and goes on."""

    def daemon_of(self, stage_id: int, replica: int) -> MpsDaemon | None:
        """Return the daemon of a stage's process; None where MPS is not used."""
        return next((daemon for daemon in self.daemons if (stage_id, replica) in daemon.users), None)


def plan_mps(
    stages: Sequence[ResolvedStage],
    *,
    wanted: bool,
    environ: Mapping[str, str],
    parallel_stage_init: bool = False,
    remote: Collection[int] = (),
) -> MpsPlan:
    """Decide which MPS daemons a deployment uses. Nothing is started, and the environment is only read.

    Args:
        stages: The resolved stages, in the order in which they start.
        wanted: The value of `cuda_mps`. Off means that nothing is managed: a daemon of the operator stays in force (MP-08).
        environ: The environment of the parent.
        parallel_stage_init: Whether stages start at the same time.
        remote: Ids of stages that run on another machine.

    Raises:
        ConfigError: Stages that share a GPU name different daemons (MP-06, E29).
    """
    if not wanted:
        return MpsPlan()
    gpus = {(stage.stage_id, replica): _gpu(stage, devices, environ) for stage, replica, devices in _processes(stages)}
    refusals = tuple(_refusals(stages, gpus, environ, parallel_stage_init, remote))
    if refusals:
        return MpsPlan(wanted=True, refusals=refusals)
    by_id = {stage.stage_id: stage for stage in stages}
    users: dict[int, list[tuple[int, int]]] = {}
    for user, gpu in gpus.items():
        if gpu is not None:
            users.setdefault(gpu, []).append(user)
    return MpsPlan(
        wanted=True,
        daemons=tuple(
            MpsDaemon(gpu, _choose_daemon(gpu, [by_id[stage_id] for stage_id, _ in shared], environ), tuple(shared))
            for gpu, shared in sorted(users.items())
        ),
    )


def _processes(stages: Sequence[ResolvedStage]) -> list[tuple[ResolvedStage, int, str | None]]:
    return [(stage, replica, devices) for stage in stages for replica, devices in enumerate(replica_devices(stage))]


def _gpu(stage: ResolvedStage, devices: str | None, environ: Mapping[str, str]) -> int | None:
    """Return the number of the only GPU that a stage's process sees; None where that is not what it sees (MP-07)."""
    visible = stage.env.get(_VISIBLE, environ.get(_VISIBLE) if devices is None else devices)
    ids = parse_devices(visible or "")
    is_one = stage.platform == CUDA.name and len(ids) == 1 and ids[0].isdecimal() and ids[0].isascii()
    return int(ids[0][:9]) if is_one else None


def _refusals(
    stages: Sequence[ResolvedStage],
    gpus: Mapping[tuple[int, int], int | None],
    environ: Mapping[str, str],
    parallel_stage_init: bool,
    remote: Collection[int],
) -> list[MpsRefusal]:
    found: list[MpsRefusal] = []
    odd = {stage_id for (stage_id, _), gpu in gpus.items() if gpu is None}
    names = ", ".join(stage.name for stage in stages if stage.stage_id in odd)
    visible = environ.get(_VISIBLE, "")
    if odd:
        found.append(MpsRefusal(MpsReason.NOT_ONE_NUMERIC_GPU, f"stage {names} is not on exactly one numbered CUDA GPU"))
    elif any(not item.isdecimal() for item in parse_devices(visible)):
        found.append(MpsRefusal(MpsReason.NOT_ONE_NUMERIC_GPU, f"{_VISIBLE}={visible} names GPUs by other than their numbers"))
    if parallel_stage_init:
        found.append(MpsRefusal(MpsReason.PARALLEL_STAGE_INIT, "stages start in parallel"))
    denoising = [stage.name for stage in stages if stage.topology.execution_type is ExecutionType.DIFFUSION]
    if denoising:
        found.append(MpsRefusal(MpsReason.DIFFUSION_STAGE, f"stage {', '.join(denoising)} denoises"))
    elsewhere = [stage.name for stage in stages if stage.stage_id in remote]
    if elsewhere:
        found.append(MpsRefusal(MpsReason.REMOTE_STAGE, f"stage {', '.join(elsewhere)} runs on another machine"))
    return found


def _choose_daemon(gpu: int, stages: Sequence[ResolvedStage], environ: Mapping[str, str]) -> str | None:
    """Return the pipe directory for a GPU: the first stage's, which the others may repeat or omit (MP-05, MP-06)."""
    first = stages[0]
    chosen = first.env.get(PIPE_DIRECTORY, environ.get(PIPE_DIRECTORY, ""))
    for stage in stages[1:]:
        own = stage.env.get(PIPE_DIRECTORY)
        if own is not None and _normal(own) != _normal(chosen):
            raise ConfigError(
                f"stages {first.name} and {stage.name} share GPU {gpu} and name different MPS daemons: "
                f"{PIPE_DIRECTORY} is {chosen!r} and {own!r} (empty means a private one)",
                where=place_of(stage.sources, "env", PIPE_DIRECTORY),
                hint=f"set it alike, or remove it from stage {stage.stage_id}",
                param=f"env.{PIPE_DIRECTORY}",
            )
    return chosen or None


def _normal(directory: str) -> str:
    return os.path.normpath(directory) if directory else ""
