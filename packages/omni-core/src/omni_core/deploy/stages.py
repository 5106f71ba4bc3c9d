"""One stage's fields from all layers, and what they come to: engine arguments, sampling parameters, placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omni_core.deploy.check import check_types
from omni_core.deploy.keys import CHAT, OWN, PIPELINE_WIDE, check_ownership, owned_names
from omni_core.deploy.merge import merge, merge_all, settle
from omni_core.deploy.provenance import Provenance
from omni_core.deploy.schema import StageDeployConfig
from omni_core.deploy.tree import Key, Node, empty, from_plain
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.sampling import apply_constraints, check_sampling
from omni_core.stage import RestartPolicy, Source


def stage_fields(stage: StagePipelineConfig, pipeline: PipelineConfig, deploy: Node, *above: Node | None) -> Node:
    """Return a stage's fields: what follows from the topology, pipeline-wide ones, its entry, the layers above (PR-01, DY-05).

    Raises:
        ConfigError: The stage does not own a field of its entry (SF-03), or a value is wrong.
    """
    owned = owned_names(stage.execution_type)
    wide = {name: deploy.value[name] for name in PIPELINE_WIDE if name in owned and name in deploy.value}
    entries = deploy.get("stages")
    entry = entries.get(stage.stage_id) if entries is not None else None
    layers = [layer for layer in (entry, *above) if layer is not None]
    for layer in layers:
        check_ownership(stage, layer)
    fields = settle(merge_all([_derived(stage, pipeline), Node(dict(wide), Source("base")), *layers]))
    check_types(StageDeployConfig, fields, name=f"stages.{stage.stage_id}.")
    return fields


def _derived(stage: StagePipelineConfig, pipeline: PipelineConfig) -> Node:
    """Return the defaults that follow from the topology, as far as an engine here needs them (SP-03).

    vLLM measures the memory of multimodal inputs at start; a stage that gets none, in a pipeline where another one does, has
    nothing to measure. The AR engine itself chooses asynchronous scheduling, and stages of the type LLM_GENERATION have no KV
    cache here.
    """
    source = Source("pipeline", f"stage {stage.stage_id} ({stage.model_stage})")
    some = any(other.requires_multimodal_data for other in pipeline.stages)
    if stage.execution_type is ExecutionType.LLM_AR and some and not stage.requires_multimodal_data:
        return Node({"skip_mm_profiling": Node(True, source)}, source)
    return empty(source)


@dataclass
class StageValues:
    """What a stage's fields come to."""

    engine_args: dict[str, Any]
    sampling: dict[str, Any]
    devices: str | None
    num_replicas: int
    env: dict[str, str]
    provenance: Provenance = field(default_factory=Provenance)
    restart: RestartPolicy = field(default_factory=RestartPolicy)


def resolve_values(stage: StagePipelineConfig, fields: Node) -> StageValues:
    """Return a stage's engine arguments, sampling parameters and placement.

    Args:
        stage: The topology.
        fields: The stage's fields from all layers.

    Raises:
        ConfigError: Two values do not fit together, or a sampling parameter is wrong.
    """
    provenance = Provenance()
    arguments: dict[str, Any] = {}
    for key, node in fields.items():
        name = str(key)
        if name in OWN - CHAT:
            continue
        if node.value is not None:
            arguments[name] = node.plain()
        if node.value is not None or node.lost:
            provenance.record(name, node)
    _check_token_budget(stage, fields)
    sampling = _sampling(stage, fields, provenance)
    placement = _placement(fields)
    for name, node in placement.items():
        provenance.record(name, node)
    values = {name: node.plain() for name, node in placement.items()}
    env = {name: value for name, value in (values.get("env") or {}).items() if value is not None}
    _check_environment(env, provenance)
    return StageValues(
        arguments,
        sampling,
        values.get("devices"),
        values.get("num_replicas") or 1,
        env,
        provenance,
        _restart(fields, provenance),
    )


def _restart(fields: Node, provenance: Provenance) -> RestartPolicy:
    names = {"restart": "when", "restart_backoff_s": "backoff_s", "restart_max": "max"}
    found = {name: node for name in names if (node := fields.get(name)) is not None}
    for name, node in found.items():
        provenance.record(name, node)
    return RestartPolicy(**{names[name]: node.value for name, node in found.items() if node.value is not None})


def _check_environment(env: Mapping[str, str], provenance: Provenance) -> None:
    """Check that an environment can hold these variables; the operating system would refuse them without a place."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(
                f"{name!r} cannot be a variable of an environment with the value {value!r}",
                where=provenance.sources[f"env.{name}"].place,
                hint="correct the name",
                param="env",
            )


def _placement(fields: Node) -> dict[str, Node]:
    """Return devices, num_replicas and env as the schema reads them: an id as a list of one, a number as text."""
    found = {name: node for name in ("devices", "num_replicas", "env") if (node := fields.value.get(name)) is not None}
    checked = StageDeployConfig.model_validate({name: node.plain() for name, node in found.items()})
    for name, node in found.items():
        value = getattr(checked, name)
        if node.is_mapping:
            items = {key: replace(item, value=value[key]) for key, item in node.items()}
            found[name] = node.with_items(items)
        else:
            found[name] = replace(node, value=value)
    return {name: node for name, node in found.items() if node.value is not None or node.lost}


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


def _sampling(stage: StagePipelineConfig, fields: Node, provenance: Provenance) -> dict[str, Any]:
    """Return the baseline sampling parameters, constraints applied (SM-01), and remember where they came from."""
    params = _sampling_tree(stage, fields)
    plain = {str(key): value for key, value in params.plain().items() if value is not None}
    if fields.get("default_pooling_params") is None:
        _check_sampling(plain, params)
    fixed = apply_constraints(plain, stage.sampling_constraints)
    source = Source("pipeline", f"stage {stage.stage_id} ({stage.model_stage})")
    constrained = from_plain(
        {name: value if isinstance(value, Mapping) else fixed[name] for name, value in stage.sampling_constraints.items()},
        source,
    )
    for key, node in merge(params, constrained).items():
        if node.value is not None or node.lost:
            provenance.record(f"sampling.{key}", node)
    return fixed


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
