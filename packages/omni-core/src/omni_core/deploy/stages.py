"""One stage's fields from all layers, and what they come to: engine arguments, sampling parameters, placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_core.deploy.check import check_types
from omni_core.deploy.keys import OWN, PIPELINE_WIDE, check_ownership, owned_names
from omni_core.deploy.merge import merge, merge_all
from omni_core.deploy.schema import StageDeployConfig
from omni_core.deploy.tree import Key, Node, empty
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.sampling import apply_constraints, check_sampling
from omni_core.stage import Source


def stage_fields(stage: StagePipelineConfig, deploy: Node, *above: Node | None) -> Node:
    """Return a stage's fields: pipeline-wide ones, its entry, and the layers above (PR-01, DY-05).

    Raises:
        ConfigError: The stage does not own a field of its entry (SF-03), or a value is wrong.
    """
    owned = owned_names(stage.execution_type)
    wide = {name: node for name in PIPELINE_WIDE if name in owned and (node := deploy.get(name)) is not None}
    entries = deploy.get("stages")
    entry = entries.get(stage.stage_id) if entries is not None else None
    layers = [layer for layer in (entry, *above) if layer is not None]
    for layer in layers:
        check_ownership(stage, layer)
    fields = merge_all([Node(dict(wide), Source("base")), *layers])
    check_types(StageDeployConfig, fields, name=f"stages.{stage.stage_id}.")
    return fields


@dataclass
class StageValues:
    """What a stage's fields come to."""

    engine_args: dict[str, Any]
    sampling: dict[str, Any]
    devices: str | None
    num_replicas: int
    env: dict[str, str]
    sources: dict[str, Source] = field(default_factory=dict)


def resolve_values(stage: StagePipelineConfig, fields: Node) -> StageValues:
    """Return a stage's engine arguments, sampling parameters and placement.

    Args:
        stage: The topology.
        fields: The stage's fields from all layers.

    Raises:
        ConfigError: Two values do not fit together, or a sampling parameter is wrong.
    """
    sources: dict[str, Source] = {}
    arguments: dict[str, Any] = {}
    for key, node in fields.items():
        name = str(key)
        if name not in OWN and node.value is not None:
            arguments[name] = node.plain()
            sources.update(sources_of(name, node))
    _check_token_budget(stage, fields)
    sampling, sampling_sources = _sampling(stage, fields)
    sources.update(sampling_sources)
    placement = {name: fields.value[name] for name in ("devices", "num_replicas", "env") if fields.get(name) is not None}
    for name, node in placement.items():
        sources.update(sources_of(name, node))
    checked = StageDeployConfig.model_validate({name: node.plain() for name, node in placement.items()})
    return StageValues(arguments, sampling, checked.devices, checked.num_replicas or 1, dict(checked.env or {}), sources)


def sources_of(name: str, node: Node) -> dict[str, Source]:
    """Return the source of a value, and those of the values inside a mapping as `name.key`."""
    found = {name: node.source}
    for key, item in node.items():
        found.update(sources_of(f"{name}.{key}", item))
    return found


def _check_token_budget(stage: StagePipelineConfig, fields: Node) -> None:
    tokens, requests = fields.get("max_num_batched_tokens"), fields.get("max_num_seqs")
    if tokens is not None and requests is not None and tokens.value < requests.value:
        raise ConfigError(
            f"stage {stage.stage_id} ({stage.model_stage}) has max_num_batched_tokens {tokens.value} "
            f"below max_num_seqs {requests.value} ({requests.place})",
            where=tokens.place,
            hint="raise the first or lower the second",
            param="max_num_batched_tokens",
        )


def _sampling(stage: StagePipelineConfig, fields: Node) -> tuple[dict[str, Any], dict[str, Source]]:
    """Return the baseline sampling parameters, constraints applied (SM-01), and where they came from."""
    params = _sampling_tree(stage, fields)
    plain = {str(key): value for key, value in params.plain().items() if value is not None}
    sources = sources_of("sampling", params)
    del sources["sampling"]
    if fields.get("default_pooling_params") is None:
        _check_sampling(plain, params)
    for name in stage.sampling_constraints:
        sources[f"sampling.{name}"] = Source("pipeline", f"stage {stage.stage_id} ({stage.model_stage})")
    return apply_constraints(plain, stage.sampling_constraints), sources


def _sampling_tree(stage: StagePipelineConfig, fields: Node) -> Node:
    pooling = fields.get("default_pooling_params")
    if pooling is not None:
        runner = fields.get("runner")
        if runner is None or runner.value != "pooling":
            raise ConfigError(
                f"stage {stage.stage_id} ({stage.model_stage}) has default_pooling_params, but does not pool",
                where=pooling.place,
                hint="set runner: pooling, or remove them",
                param="default_pooling_params",
            )
        return pooling
    params = fields.get("default_sampling_params") or empty(Source("default"))
    extra: dict[Key, Node] = {}
    if (predictor := fields.get("subtalker_sampling_params")) is not None:
        extra["mtp"] = predictor
    if (frames := fields.get("silence_ban_frames")) is not None:
        extra["silence_ban_frames"] = frames
    if not extra:
        return params
    return merge(params, Node({"extra_args": Node(extra, next(iter(extra.values())).source)}, params.source))


def _check_sampling(plain: Mapping[str, Any], params: Node) -> None:
    try:
        check_sampling(plain, where="", error=ConfigError)
    except ConfigError as error:
        place = params.find((error.param or "").split(".")).place
        raise ConfigError(error.message, where=place, hint=error.hint, param=error.param) from None
