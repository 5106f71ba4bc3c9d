"""Why a deployment is as it is: every setting with the value that won, its place, and the values that lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage, Source

LAYERS = {
    "default": "default",
    "base": "base YAML",
    "overlay": "overlay YAML",
    "platform": "platform section",
    "flag": "global CLI",
    "stage override": "per-stage CLI",
    "pipeline": "pipeline",
}
"""What people read instead of the name of a layer, from the lowest to the highest."""

_DEFAULT = Source("default")


@dataclass(frozen=True)
class Setting:
    """One value of a resolved deployment."""

    stage: int | None
    """The stage; None for what concerns the whole pipeline."""
    field: str
    """The field; a value inside a mapping is `FIELD.KEY`."""
    value: Any
    source: Source
    losers: tuple[Source, ...] = ()
    """Where lower layers set it, the strongest first; each has its `value`."""

    @property
    def where(self) -> str:
        """The layer and the place, for people."""
        return describe_source(self.source)

    def matches(self, name: str) -> bool:
        """Return whether `name` is this field, a mapping around it, or its last part."""
        return self.field == name or self.field.startswith(f"{name}.") or self.field.endswith(f".{name}")

    def as_plain(self) -> dict[str, Any]:
        """Return this setting for JSON."""
        return {
            "stage": self.stage,
            "field": self.field,
            "value": self.value,
            "layer": self.source.layer,
            "place": self.source.place,
            "losers": [{"value": loser.value, "layer": loser.layer, "place": loser.place} for loser in self.losers],
        }


def describe_source(source: Source) -> str:
    """Return a source's layer in words, and its place."""
    return f"{LAYERS.get(source.layer, source.layer)}  {source.place}".rstrip()


def pipeline_settings(resolved: ResolvedPipeline) -> list[Setting]:
    """Return the settings that no single stage owns."""
    values = {"async_chunk": resolved.async_chunk, **resolved.values}
    losers = {name: lost for name, lost in resolved.losers.items() if not name.startswith("edge.")}
    return _settings(None, values, resolved.sources, losers)


def stage_settings(stage: ResolvedStage, resolved: ResolvedPipeline) -> list[Setting]:
    """Return the settings of one stage; sampling parameters are `sampling.NAME`, its outgoing edges `to_stage_N.NAME`."""
    values: dict[str, Any] = {
        "model_runner": stage.model_runner,
        "async_chunk": stage.async_chunk,
        "devices": stage.devices,
        "num_replicas": stage.num_replicas,
        **stage.restart.fields,
        "env": dict(stage.env),
        **stage.engine_args,
        "sampling": dict(stage.sampling),
    }
    edges = [setting for edge in stage.outputs for setting in _edge_settings(edge, resolved)]
    return [*_settings(stage.stage_id, values, stage.sources, stage.losers), *edges]


def _edge_settings(edge: ResolvedEdge, resolved: ResolvedPipeline) -> list[Setting]:
    known = f"edge.{edge.from_stage}-{edge.to_stage}"
    values = {"connector": edge.connector, "options": edge.options, "stream": edge.stream}
    losers = {name: lost for name, lost in resolved.losers.items() if name.startswith(f"{known}.")}
    found = []
    for setting in _settings(edge.from_stage, {known: values}, resolved.sources, losers):
        name = setting.field.removeprefix(f"{known}.").removeprefix("options.").removeprefix("stream.")
        found.append(replace(setting, field=f"to_stage_{edge.to_stage}.{name}"))
    return found


def all_settings(resolved: ResolvedPipeline) -> list[Setting]:
    """Return every setting, those of the whole pipeline first."""
    return [*pipeline_settings(resolved), *(found for stage in resolved.stages for found in stage_settings(stage, resolved))]


def _settings(
    stage: int | None, values: Mapping[str, Any], sources: Mapping[str, Source], losers: Mapping[str, Sequence[Source]]
) -> list[Setting]:
    found = [
        Setting(stage, name, value, find_source(name, sources), tuple(losers.get(name, ())))
        for field, content in values.items()
        for name, value in _leaves(field, content)
    ]
    known = {setting.field for setting in found}
    erased = [name for name, lost in losers.items() if lost and name not in known and name in sources]
    return found + [
        Setting(stage, name, None, sources[name], tuple(losers[name])) for name in erased if sources[name].value is None
    ]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values inside a mapping by their dotted names; an empty mapping says nothing."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from _leaves(f"{name}.{key}", item)


def find_source(name: str, sources: Mapping[str, Source]) -> Source:
    """Return the source of a dotted name, or of the closest mapping around it; the engine's default if there is none."""
    while name not in sources:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return _DEFAULT
    return sources[name]


def show_value(value: Any) -> str:
    """Return a value as people read it: strings bare, nothing as `-`."""
    if value is None:
        return "-"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def setting_rows(settings: Sequence[Setting], indent: str = "  ") -> list[list[str]]:
    """Return the rows of a table: field, value, where it comes from; below it the values it wins over."""
    rows = []
    for setting in settings:
        rows.append([f"{indent}{setting.field}", show_value(setting.value), setting.where])
        rows += [
            ["", "", f"  wins over {'null' if loser.value is None else show_value(loser.value)}  {describe_source(loser)}"]
            for loser in setting.losers
        ]
    return rows


def describe_stage(stage: ResolvedStage) -> str:
    """Return one line about a stage for the log of a start: what it is, where it runs, and its limits."""
    limits = ("tensor_parallel_size", "max_num_seqs", "max_model_len", "gpu_memory_utilization", "kv_cache_memory_bytes")
    parts = [str(stage.topology.execution_type), f"{stage.architecture or 'the checkpoint'} on {stage.platform}"]
    parts.append("devices as given" if stage.devices is None else f"devices {stage.devices}")
    if stage.num_replicas != 1:
        parts.append(f"{stage.num_replicas} replicas")
    parts.append(f"model runner {stage.model_runner}")
    parts += [f"{name} {stage.engine_args[name]}" for name in limits if name in stage.engine_args]
    parts += [
        f"{'chunks' if edge.async_chunk else 'whole payloads'} to stage {edge.to_stage} by {edge.connector}"
        for edge in stage.outputs
    ]
    return f"stage {stage.name}: {', '.join(parts)}"


def describe_pipeline(resolved: ResolvedPipeline) -> str:
    """Return one line about a whole deployment for the log of a start."""
    files = ", ".join(resolved.files) or "no deploy file"
    return f"pipeline {resolved.config.model_type} on {resolved.platform}, configuration {resolved.config_hash} ({files})"
