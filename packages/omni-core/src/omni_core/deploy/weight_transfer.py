"""Weight transfer: how new weights reach a stage's engine while it runs (WT-01)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source
from omni_core.suggest import did_you_mean, way_out

WEIGHT_TRANSFER_BACKENDS = ("nccl", "ipc", "sparse_nccl", "sharded_rdt", "nccl_m2n")
"""Backends that vLLM (0.32) registers itself; plugins may register more."""

_FIELD = "weight_transfer_config"


def check_weight_transfer(stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> Outcome:
    """Check a stage's `weight_transfer_config` and return it with its default backend.

    Raises:
        ConfigError: It has an unknown key, or the backend is no name.
    """
    given = arguments.get(_FIELD)
    if given is None:
        return Outcome()
    unknown = next((key for key in given if key != "backend"), None)
    if unknown is not None:
        raise ConfigError(
            f"{stage_name(stage)}: {_FIELD} has no key {unknown!r}",
            where=place_of(sources, _FIELD, unknown),
            hint=way_out(unknown, ["backend"], "keys"),
            param=f"{_FIELD}.{unknown}",
        )
    backend = "nccl" if given.get("backend") is None else given["backend"]
    if not isinstance(backend, str) or not backend.strip():
        raise ConfigError(
            f"{stage_name(stage)}: {_FIELD}.backend is {backend!r}, which is no name",
            where=place_of(sources, _FIELD, "backend"),
            hint=f"vLLM's backends are {', '.join(WEIGHT_TRANSFER_BACKENDS)}",
            param=f"{_FIELD}.backend",
        )
    warnings: tuple[str, ...] = ()
    if backend not in WEIGHT_TRANSFER_BACKENDS:
        close = did_you_mean(backend, WEIGHT_TRANSFER_BACKENDS)
        text = f"weight transfer backend {backend!r} is none of vLLM's own; a plugin has to register it"
        place = place_of(sources, _FIELD, "backend")
        warnings = (f"{place}: {stage_name(stage)}: {text}{f' ({close})' if close else ''}",)
    return Outcome({_FIELD: {"backend": backend}}, warnings=warnings)
