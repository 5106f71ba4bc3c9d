"""A request's sampling parameters for each stage of a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_core.errors import RequestError
from omni_core.sampling import apply_constraints, check_sampling, merge_sampling
from omni_core.stage import ResolvedPipeline

SamplingParams = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""One mapping for each stage in order, None for a stage that keeps its defaults; or one mapping for a one-stage pipeline."""


def effective_sampling(
    pipeline: ResolvedPipeline, prepared: Mapping[int, Mapping[str, Any]], requested: SamplingParams
) -> dict[int, dict[str, Any]]:
    """Return each stage's sampling parameters: the deployment's, the prompt's, then the request's, constraints on top.

    Raises:
        RequestError: There is not exactly one entry for each stage (SM-05), or a parameter cannot be used.
    """
    count = len(pipeline.stages)
    if isinstance(requested, Mapping):
        if count != 1:
            raise RequestError(
                f"one mapping of sampling parameters is given, but the pipeline has {count} stages",
                param="sampling_params_list",
                hint="pass a list with one mapping for each stage",
            )
        requested = [requested]
    if requested is not None and (isinstance(requested, str) or len(requested) != count):
        raise RequestError(
            f"sampling_params_list has {len(requested)} entries, but the pipeline has {count} stages",
            param="sampling_params_list",
            hint="pass one mapping for each stage, {} for a stage that keeps its defaults",
        )
    found = {}
    for index, stage in enumerate(pipeline.stages):
        asked = (requested[index] if requested is not None else None) or {}
        where = f"sampling_params_list[{index}]"
        if not isinstance(asked, Mapping):
            raise RequestError("it is no mapping", where=where, param="sampling_params_list", hint="pass a dict")
        check_sampling(asked, where=where)
        merged = merge_sampling(stage.sampling, prepared.get(stage.stage_id), asked)
        found[stage.stage_id] = apply_constraints(merged, stage.topology.sampling_constraints)
    return found
