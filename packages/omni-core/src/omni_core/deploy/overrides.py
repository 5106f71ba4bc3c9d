"""Per-stage overrides and global flags as trees, ready to lie on top of the deploy files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from omni_core.deploy.check import check_types
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES
from omni_core.deploy.keys import DEPLOY_ONLY, LORA, check_stage_keys, fold_extras, owned_names
from omni_core.deploy.merge import merge
from omni_core.deploy.notes import warn
from omni_core.deploy.schema import DeployConfig, StageDeployConfig
from omni_core.deploy.tree import Key, Node, from_plain, shown
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.stage import Source
from omni_core.suggest import did_you_mean

_OPTION = "--stage-overrides"
SAMPLING_OPTION = "--default-sampling-params"
_EXAMPLES = {
    _OPTION: """write a JSON object such as '{"0": {"max_num_seqs": 8}}'""",
    SAMPLING_OPTION: """write a JSON object such as '{"0": {"temperature": 0.7}}'""",
}
_FLAT = re.compile(r"^stage_(\d+)_(\w+)$")

NOT_BROADCAST = frozenset(
    {
        "stage_id",
        "devices",
        "num_replicas",
        "env",
        "output_connectors",
        "input_connectors",
        "default_sampling_params",
        "default_pooling_params",
        "subtalker_sampling_params",
        "engine_extras",
    }
)
"""Fields of a stage that no global flag sets."""
DEPLOY_FLAGS = tuple(sorted(DEPLOY_ONLY | {"session_mode"}))
"""Top-level fields that a flag sets as such, instead of in every stage."""


def flag_name(name: str) -> str:
    """Return a field's name as the user types it: `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def parse_stage_overrides(value: Mapping[Any, Any] | str | None, option: str = _OPTION) -> dict[int, dict[str, Any]]:
    """Return what an option says of single stages, from JSON or from a mapping; null values are no overrides (SO-02).

    Args:
        value: The option's value; None where it was not given.
        option: The option: `--stage-overrides`, or `--default-sampling-params`.

    Raises:
        ConfigError: The text is not JSON, or it is no object of stage ids to objects (SO-01, SM-04).
    """
    hint = _EXAMPLES[option]
    if value is None:
        return {}
    if isinstance(value, str):
        value = _parse_json(value, option)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(value, 120)} is no object", where=option, hint=hint)
    found: dict[int, dict[str, Any]] = {}
    for key, fields in value.items():
        if isinstance(key, bool) or not re.fullmatch(r"[0-9]{1,9}", str(key), re.ASCII):
            raise ConfigError(f"{shown(key, 120)} is no stage id", where=option, hint=hint)
        if not isinstance(fields, Mapping):
            raise ConfigError(f"the fields of stage {key} are {shown(fields, 120)}, not an object", where=option, hint=hint)
        found.setdefault(int(key), {}).update({str(name): item for name, item in fields.items() if item is not None})
    return found


def _parse_json(text: str, option: str) -> Any:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"the key {twice!r} is there twice", where=option, hint="keep one of them")
        return found

    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{shown(text, 120)} is not JSON: {error.msg} at character {error.pos + 1}", where=option, hint=_EXAMPLES[option]
        ) from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{shown(text, 120)} cannot be read: {error}", where=option, hint=_EXAMPLES[option]) from error


def split_flat_overrides(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Return the given flags without `stage_N_FIELD` ones, and those by stage (SO-02). None means not given."""
    rest: dict[str, Any] = {}
    stages: dict[int, dict[str, Any]] = {}
    for name, value in flags.items():
        if value is None:
            continue
        match = _FLAT.match(name)
        if match is None:
            rest[name] = value
        else:
            stages.setdefault(int(match.group(1)), {})[match.group(2)] = value
    return rest, stages


def override_trees(overrides: Mapping[int, Mapping[str, Any]], pipeline: PipelineConfig) -> dict[int, Node]:
    """Return checked overrides as trees by stage id.

    Raises:
        ConfigError: A stage does not exist (SO-03), or a field is unknown or has a wrong value.
    """
    check_stage_ids(overrides, pipeline, where=_OPTION)
    found: dict[int, Node] = {}
    for stage_id, fields in overrides.items():
        source = Source("stage override", _OPTION)
        fields = _without_aliases(stage_id, fields, pipeline)
        items = {
            name: from_plain(value, Source("stage override", f"{_OPTION} {stage_id}.{name}")) for name, value in fields.items()
        }
        tree = Node(dict(items), source, _OPTION)
        if "stage_id" in items:
            raise ConfigError(f"stage {stage_id} cannot be given another stage_id", where=_OPTION, hint="remove it")
        check_stage_keys(tree)
        check_types(StageDeployConfig, tree, name=f"stages.{stage_id}.")
        found[stage_id] = fold_extras(tree)
    return found


def _without_aliases(stage_id: int, fields: Mapping[str, Any], pipeline: PipelineConfig) -> dict[str, Any]:
    """Return overrides with the pipeline's own names of fields replaced by the fields' names (PR-07)."""
    found = dict(fields)
    for alias, (owner, name) in pipeline.stage_cli_aliases.items():
        if alias not in found:
            continue
        if owner != stage_id:
            raise ConfigError(
                f"{alias} is {name} of stage {owner}, not of stage {stage_id}", where=_OPTION, hint=f"set it for stage {owner}"
            )
        value = found.pop(alias)
        if found.setdefault(name, value) != value:
            warn(f"{_OPTION}: {alias} of stage {stage_id} is ignored, {name} sets it too")
    return found


def sampling_trees(given: Mapping[int, Mapping[str, Any]], pipeline: PipelineConfig) -> dict[int, Node]:
    """Return what `--default-sampling-params` says of each stage, as fields of the stage (SM-03).

    Raises:
        ConfigError: It names a stage that does not exist (SM-04).
    """
    check_stage_ids(given, pipeline, where=SAMPLING_OPTION)
    found: dict[int, Node] = {}
    for stage_id, params in given.items():
        items: dict[Key, Node] = {
            name: from_plain(item, Source("flag", f"{SAMPLING_OPTION} {stage_id}.{name}")) for name, item in params.items()
        }
        source = Source("flag", f"{SAMPLING_OPTION} {stage_id}")
        found[stage_id] = Node({"default_sampling_params": Node(items, source, SAMPLING_OPTION)}, source)
    return found


def check_stage_ids(ids: Mapping[int, Any], pipeline: PipelineConfig, *, where: str) -> None:
    """Raise ConfigError for an id that is no stage of the pipeline."""
    known = [stage.stage_id for stage in pipeline.stages]
    for stage_id in ids:
        if stage_id not in known:
            listed = ", ".join(f"{stage.stage_id} ({stage.model_stage})" for stage in pipeline.stages)
            raise ConfigError(
                f"pipeline {pipeline.model_type!r} has no stage {stage_id}", where=where, hint=f"its stages are {listed}"
            )


def flag_trees(
    flags: Mapping[str, Any],
    assigned: Mapping[str, Node],
    pipeline: PipelineConfig,
    flag_stages: Collection[int] | None = None,
) -> tuple[Node, dict[int, Node]]:
    """Return the flags that set top-level fields, and those of each stage that owns them (PR-05).

    Args:
        flags: Values by field name, or by a name of the pipeline's own (PR-07).
        assigned: Fields that `--set` gives to every stage; flags beat them.
        pipeline: The topology.
        flag_stages: Stages that flags are for; None is all.

    Raises:
        ConfigError: A flag is unknown, has a wrong value, or is owned by no stage of the pipeline.
    """
    source = Source("flag")
    top: dict[Any, Node] = {}
    stages: dict[int, dict[Any, Node]] = {stage.stage_id: {} for stage in pipeline.stages}
    ownerless: list[str] = []
    nodes = [*assigned.items(), *((name, from_plain(value, Source("flag", flag_name(name)))) for name, value in flags.items())]
    for name, node in sorted(nodes, key=lambda pair: pair[0] in pipeline.stage_cli_aliases):
        if name in DEPLOY_FLAGS:
            top[name] = node
            continue
        owner, field = pipeline.stage_cli_aliases.get(name, (None, name))
        if owner is None:
            _check_flag(name, pipeline)
        owners = _owners(name, pipeline) if owner is None else [pipeline.stage(owner)]
        own = [stage for stage in owners if flag_stages is None or stage.stage_id in flag_stages]
        if owners and not own:
            warn(f"{node.place} has no effect: no stage of this command takes it")
        for stage in own:
            below = stages[stage.stage_id].get(field)
            stages[stage.stage_id][field] = node if below is None else merge(below, node)
        if not owners:
            ownerless.append(node.place)
    if ownerless:
        raise ConfigError(
            f"no stage of pipeline {pipeline.model_type!r} takes {', '.join(ownerless)}",
            where=ownerless[0],
            hint="remove it",
        )
    tree = Node(top, source)
    check_types(DeployConfig, tree)
    trees = {stage_id: Node(items, source) for stage_id, items in stages.items()}
    for tree_of_stage in trees.values():
        check_types(StageDeployConfig, tree_of_stage)
    return tree, trees


def _owners(name: str, pipeline: PipelineConfig) -> list[StagePipelineConfig]:
    """Return the stages that a flag is given to.

    `max_cpu_loras` is the denoising stages' where there are any (LR-06), and `tokenizer` that of stages whose pipeline names no
    folder for it (PR-06).
    """
    owners = [stage for stage in pipeline.stages if name in owned_names(stage.execution_type)]
    if name == "tokenizer":
        owners = [stage for stage in owners if stage.tokenizer_subdir is None]
    denoising = [stage for stage in owners if stage.execution_type is ExecutionType.DIFFUSION]
    return denoising if name == "max_cpu_loras" and denoising else owners


def _check_flag(name: str, pipeline: PipelineConfig) -> None:
    known = (frozenset(StageDeployConfig.model_fields) | ENGINE_ARG_NAMES | frozenset(DEPLOY_FLAGS)) - NOT_BROADCAST
    if name in NOT_BROADCAST:
        raise ConfigError(
            f"{flag_name(name)} differs from stage to stage", where=flag_name(name), hint=f"set it with {_OPTION}"
        )
    if name not in known:
        raise ConfigError(
            f"there is no flag {flag_name(name)}", where=flag_name(name), hint=did_you_mean(name, known) or "remove it"
        )
    is_for_denoising = all(stage.execution_type is ExecutionType.DIFFUSION for stage in _owners(name, pipeline))
    if name in LORA and len(pipeline.stages) > 1 and not is_for_denoising:
        example = json.dumps({"0": {name: True if name == "enable_lora" else 1}})
        raise ConfigError(
            f"{flag_name(name)} cannot be set for all stages of pipeline {pipeline.model_type!r}",
            where=flag_name(name),
            hint=f"set it for one: {_OPTION} '{example}'",
        )
