"""Executors: how the workers of a stage run (EX-01, EX-02), and the environment that Ray workers get (RY-03 to RY-05)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from omni_core import envs
from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source
from omni_core.suggest import way_out

EXECUTORS = ("uni", "mp", "ray", "external_launcher")
"""Executors by name: vLLM's `DistributedExecutorBackend`. A class of one's own is written `package.module.Class`."""

FORWARDED_PREFIXES = (
    "VLLM_",
    "OMNI_",
    "DIFFUSION_",
    "NCCL_",
    "TORCH_NCCL_",
    "UCX_",
    "HF_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
)
"""Variables of the driver that Ray workers get (RY-03)."""
FORWARDED = frozenset({"PYTHONPATH", "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"})
"""Further variables of the driver that Ray workers get."""

_FIELD = "distributed_executor_backend"
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_KEPT = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "VLLM_LOCAL_RANK",
        "VLLM_DP_RANK",
        "VLLM_DP_RANK_LOCAL",
        "VLLM_DP_SIZE",
        "VLLM_DP_MASTER_IP",
        "VLLM_DP_MASTER_PORT",
        "VLLM_HOST_IP",
        "VLLM_HOST_PORT",
        "VLLM_LOOPBACK_IP",
        "VLLM_PORT",
        "VLLM_RPC_BASE_PATH",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "VLLM_EC_SIDE_CHANNEL_HOST",
        "VLLM_RAY_DP_PLACEMENT_NODE_IPS",
        "ZE_AFFINITY_MASK",
        "ONEAPI_DEVICE_SELECTOR",
        "GPU_DEVICE_ORDINAL",
    ]
)
_KEPT_FORM = re.compile(r"(RAY|TORCHELASTIC)_.*|.*_VISIBLE_(DEVICES|CHIPS|CORES|MODULES)")


def resolve_executor(
    stage: StagePipelineConfig,
    arguments: Mapping[str, Any],
    sources: Mapping[str, Source],
    *,
    ranks: int,
    ray_installed: bool | None = None,
) -> Outcome:
    """Check a stage's executor, and choose that of a denoising stage which has none.

    Args:
        stage: The topology.
        arguments: The stage's engine arguments.
        sources: Where they came from.
        ranks: Devices of one replica, for a stage that denoises. vLLM's executors run tensor x pipeline parallel ranks, one
            executor for each data-parallel rank.
        ray_installed: Whether Ray can be imported; looked up by default.

    Raises:
        ConfigError: The executor does not exist, cannot run this stage, or needs Ray, which is not installed (E33).
    """
    denoises = stage.execution_type is ExecutionType.DIFFUSION
    value = arguments.get(_FIELD)
    if value is None:
        if not denoises:
            return Outcome()
        return Outcome({_FIELD: "uni" if ranks == 1 else "mp"}, sources={_FIELD: Source("default")})

    def refuse(message: str, hint: str) -> ConfigError:
        return ConfigError(f"{stage_name(stage)}: {message}", where=place_of(sources, _FIELD), hint=hint, param=_FIELD)

    if value not in EXECUTORS and not _CLASS.fullmatch(value):
        hint = f"{way_out(value, EXECUTORS, 'executors')}; a class is written package.module.Class"
        raise refuse(f"there is no executor {value!r}", hint)
    if value not in EXECUTORS and not _is_installed(value.partition(".")[0]):
        raise refuse(f"executor {value!r} is in a package that is not installed", "install it, or correct the name")
    if value == "ray":
        if not (_is_installed("ray") if ray_installed is None else ray_installed):
            raise refuse("the executor 'ray' needs Ray, which is not installed", "pip install ray, on every node")
    elif value == "external_launcher" and denoises:
        raise refuse("the executor 'external_launcher' cannot run a stage that denoises", "use uni, mp or ray")
    elif value == "uni" and (workers := ranks if denoises else _workers(arguments)) > 1:
        raise refuse(f"the executor 'uni' runs one rank, and this stage has {workers}", "use mp")
    return Outcome()


def _workers(arguments: Mapping[str, Any]) -> int:
    """Return the ranks of one executor of vLLM."""
    return (arguments.get("tensor_parallel_size") or 1) * (arguments.get("pipeline_parallel_size") or 1)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module that was made by hand, such as __main__
        return False


def ray_environment(driver: Mapping[str, str], stage: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment to give to a stage's Ray workers, and warnings.

    Args:
        driver: Environment of the process that makes the workers (RY-03).
        stage: The stage's `env`; it takes precedence, and any name is given on (RY-04).

    What says which worker this is (its devices, rank, rendezvous, host address, Ray's own variables) is in neither case given
    on, so that each worker keeps its own (RY-05). A warning names each such variable that the stage's `env` sets.
    """
    found = {name: value for name, value in driver.items() if _is_forwarded(name) and not is_worker_identity(name)}
    found.update({name: value for name, value in stage.items() if not is_worker_identity(name)})
    warnings = tuple(
        f"env.{name} is not given to Ray workers: each has its own" for name in sorted(stage) if is_worker_identity(name)
    )
    return found, warnings


def is_worker_identity(name: str) -> bool:
    """Return whether a variable says which worker a process is, or which server run it belongs to."""
    own = envs.VARIABLES.get(name)
    return name in _KEPT or _KEPT_FORM.fullmatch(name) is not None or (own is not None and own.internal)


def _is_forwarded(name: str) -> bool:
    return name in FORWARDED or name.startswith(FORWARDED_PREFIXES)
