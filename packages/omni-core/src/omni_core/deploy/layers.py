"""Lay everything that was said about a deployment on top of each other: files, platform, flags, overrides (PR-01)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.deploy.assignments import Assignments, parse_assignments
from omni_core.deploy.files import Deployment
from omni_core.deploy.merge import merge
from omni_core.deploy.notes import warn
from omni_core.deploy.overrides import (
    SAMPLING_OPTION,
    check_stage_ids,
    flag_name,
    flag_trees,
    override_trees,
    parse_stage_overrides,
    sampling_trees,
    split_flat_overrides,
)
from omni_core.deploy.platform_layer import apply_platform
from omni_core.deploy.stages import stage_fields
from omni_core.deploy.tree import Node
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import Platform
from omni_core.plugins import PluginManager


@dataclass(frozen=True)
class CommandLine:
    """What the user typed, or passed in Python, beside the deploy files."""

    flags: Mapping[str, Any]
    assigned: Assignments
    sampling: Mapping[int, Mapping[str, Any]]
    """What `--default-sampling-params` says of stages."""
    overrides: Mapping[int, Mapping[str, Any]]
    revision: str | None = None
    flag_stages: frozenset[int] | None = None
    """Stages that flags are for (SB-05); None is all."""


def read_command_line(
    flags: Mapping[str, Any] | None,
    stage_overrides: Mapping[Any, Any] | str | None,
    flag_stages: Collection[int] | None = None,
) -> CommandLine:
    """Return flags sorted by what they are: `set`, `default_sampling_params`, `revision`, `stage_N_FIELD`, and all others.

    Raises:
        ConfigError: One cannot be read.
    """
    rest, flat = split_flat_overrides(flags or {})
    overrides = parse_stage_overrides(stage_overrides)
    for stage_id, fields in flat.items():
        overrides[stage_id] = {**fields, **overrides.get(stage_id, {})}
    assigned = parse_assignments(rest.pop("set", None))
    return CommandLine(
        sampling=parse_stage_overrides(rest.pop("default_sampling_params", None), SAMPLING_OPTION),
        revision=rest.pop("revision", None),
        flags=rest,
        assigned=assigned,
        overrides=overrides,
        flag_stages=None if flag_stages is None else frozenset(flag_stages),
    )


@dataclass(frozen=True)
class Plan:
    """All layers of a deployment on top of each other."""

    pipeline: PipelineConfig
    deploy: Node
    """Top-level fields."""
    stages: Mapping[int, Node]
    """Each stage's fields."""


def lay(
    pipeline: PipelineConfig, deployment: Deployment, platform: Platform, line: CommandLine, manager: PluginManager
) -> Plan:
    """Return all layers as one.

    Raises:
        ConfigError: A stage does not exist, a field is not owned where it is set, or a value is wrong.
    """
    _check_ids(deployment.tree, pipeline)
    sections = deployment.tree.get("platforms")
    for _, section in sections.items() if sections is not None else ():
        _check_ids(section, pipeline)
    deploy = apply_platform(deployment.tree, platform, pipeline, manager)
    _check_ids(deploy, pipeline)
    check_stage_ids(dict.fromkeys(line.flag_stages or ()), pipeline, where="--stage-id")
    top_flags, stage_flags = flag_trees(line.flags, line.assigned.flags, pipeline, line.flag_stages)
    sampling = sampling_trees(line.sampling, pipeline)
    overrides = override_trees(line.overrides, pipeline)
    for stage_id, tree in line.assigned.stages.items():
        check_stage_ids({stage_id: tree}, pipeline, where=tree.place)
    _warn_of_aliases(line.flags, overrides, pipeline)
    deploy = merge(merge(deploy, line.assigned.top), top_flags)
    entries = deploy.get("stages")
    stages = {}
    for stage in pipeline.stages:
        number = stage.stage_id
        entry = entries.get(number) if entries is not None else None
        flags = _without_tokenizer(stage_flags[number], entry)
        above = [flags, sampling.get(number), line.assigned.stages.get(number), overrides.get(number)]
        stages[number] = stage_fields(stage, pipeline, deploy, *above)
    return Plan(pipeline, deploy, stages)


def _check_ids(section: Node, pipeline: PipelineConfig) -> None:
    """Check that every entry of `stages` is about a stage of the pipeline (SF-02)."""
    entries = section.get("stages")
    for stage_id, node in entries.items() if entries is not None else ():
        check_stage_ids({int(stage_id): node}, pipeline, where=node.place)


def _without_tokenizer(flags: Node, entry: Node | None) -> Node:
    """Return a stage's flags without `--tokenizer` where the stage's entry has its own (PR-06)."""
    if entry is None or entry.get("tokenizer") is None:
        return flags
    return flags.with_items({key: node for key, node in flags.items() if key != "tokenizer"})


def _warn_of_aliases(flags: Mapping[str, Any], overrides: Mapping[int, Node], pipeline: PipelineConfig) -> None:
    """Warn of a pipeline's own flag that has no effect, since the stage itself says something else (PR-07)."""
    for alias, (owner, name) in pipeline.stage_cli_aliases.items():
        own = overrides[owner].get(name) if owner in overrides else None
        if alias in flags and own is not None and own.plain() != flags[alias]:
            warn(f"{own.place} beats {flag_name(alias)}, which is {name} of stage {owner}")
