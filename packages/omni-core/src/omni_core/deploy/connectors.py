"""Connectors of a pipeline's edges: references, specifications, and what belongs to the transport (CN-01 to CN-08)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from omni_core.deploy.check import check_types
from omni_core.deploy.provenance import Choice, Provenance, losers_of
from omni_core.deploy.tree import Node, empty
from omni_core.errors import ConfigError, DependencyError
from omni_core.pipeline import PipelineConfig
from omni_core.plugins import Offer, PluginManager, unique_by_name
from omni_core.stage import ResolvedEdge, Source
from omni_core.suggest import way_out
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.connector import ConnectorEntry

DEFAULT = "SharedMemoryConnector"
_FORMS = {
    "output_connectors": re.compile(r"^to_stage_([0-9]+)$", re.ASCII),
    "input_connectors": re.compile(r"^from_stage_([0-9]+)$", re.ASCII),
}


def resolve_edges(
    pipeline: PipelineConfig, deploy: Node, stages: Mapping[int, Node], streaming: frozenset[int], manager: PluginManager
) -> tuple[tuple[ResolvedEdge, ...], Provenance]:
    """Return every edge of the pipeline with its connector, and where its values came from.

    Args:
        pipeline: The topology.
        deploy: Top-level fields.
        stages: Each stage's fields.
        streaming: Stages that hand on chunks while they work.
        manager: The plugins.

    Raises:
        ConfigError: A specification has no name or names no connector, a reference is undefined, its edge does not exist,
            both ends of an edge name different connectors, or an option has a wrong value.
        DependencyError: No connector is installed at all.
    """
    known = unique_by_name(manager.collect("omni_connectors"), "connector")
    named = deploy.get("connectors") or empty(Source("default"))
    for name, spec in named.items():
        if spec.value is None:
            continue
        _entry(spec, known, f"connector {name!r}")
    references = _references(pipeline, stages)
    _check_explicit_edges(pipeline, deploy)
    edges = []
    provenance = Provenance()
    for edge in pipeline.edges:
        said = references.get(edge, [])
        found = [_specification(reference, named, edge) for reference in said]
        dtype = stages[edge[1]].get("dtype")
        resolved = _resolve_edge(edge, found, known, edge[0] in streaming)
        edges.append(resolved if dtype is None else replace(resolved, dtype=dtype.value))
        _record(edges[-1], said, found, provenance)
    return tuple(edges), provenance


def _record(edge: ResolvedEdge, said: list[Node], found: list[tuple[str, Node]], provenance: Provenance) -> None:
    name = f"edge.{edge.from_stage}-{edge.to_stage}"
    if not found:
        provenance.choose(f"{name}.connector", Choice(edge.connector, Source("default", value=edge.connector)))
        return
    source = Source(said[0].source.layer, said[0].place, edge.connector)
    provenance.choose(f"{name}.connector", Choice(edge.connector, source, losers_of(said[0])))
    for key, node in (found[0][1].get("extra") or empty(source)).items():
        if node.value is not None or node.lost:
            provenance.record(f"{name}.{'options' if key in edge.options else 'stream'}.{key}", node)


def _references(pipeline: PipelineConfig, stages: Mapping[int, Node]) -> dict[tuple[int, int], list[Node]]:
    """Return what both ends of each edge say, checked to be edges of the pipeline (CN-05)."""
    found: dict[tuple[int, int], list[Node]] = {}
    for stage_id, fields in stages.items():
        for field, form in _FORMS.items():
            for key, node in (fields.get(field) or empty(Source("default"))).items():
                match = form.match(str(key))
                if match is None:
                    example = "to_stage_1" if field == "output_connectors" else "from_stage_0"
                    raise ConfigError(f"{key!r} is no key of {field}", where=node.key_place, hint=f"write {example}")
                if node.value is None:
                    continue
                other = int(match.group(1))
                edge = (stage_id, other) if field == "output_connectors" else (other, stage_id)
                if edge not in pipeline.edges:
                    listed = ", ".join(f"{a} to {b}" for a, b in pipeline.edges) or "none"
                    raise ConfigError(
                        f"pipeline {pipeline.model_type!r} has no edge from stage {edge[0]} to stage {edge[1]}",
                        where=node.key_place,
                        hint=f"its edges are {listed}",
                    )
                found.setdefault(edge, []).append(node)
    return found


def _specification(reference: Node, named: Node, edge: tuple[int, int]) -> tuple[str, Node]:
    """Return the name and the specification that a reference stands for."""
    if reference.is_mapping:
        return str(reference.value["name"].value) if "name" in reference.value else "", reference
    spec = named.get(reference.value) if isinstance(reference.value, str) else None
    if spec is None:
        names = [key for key, _ in named.items()]
        raise ConfigError(
            f"the edge from stage {edge[0]} to stage {edge[1]} names {reference.value!r}, and there is no connector "
            "of that name",
            where=reference.place,
            hint=way_out(reference.value, names, "entries of `connectors:`"),
        )
    return reference.value, spec


def _resolve_edge(
    edge: tuple[int, int], found: list[tuple[str, Node]], known: Mapping[str, Offer[ConnectorEntry]], streaming: bool
) -> ResolvedEdge:
    if not found:
        entry = _default(known)
        return ResolvedEdge(*edge, entry.name, entry.target, async_chunk=streaming)
    entries = [_entry(spec, known, f"the connector from stage {edge[0]} to stage {edge[1]}") for _, spec in found]
    if len({entry.name for entry in entries}) > 1 or len({name for name, _ in found}) > 1:
        said = " and ".join(
            f"{name or entry.name!r} ({spec.place})" for (name, spec), entry in zip(found, entries, strict=True)
        )
        raise ConfigError(
            f"the edge from stage {edge[0]} to stage {edge[1]} has two connectors, {said}",
            where=found[-1][1].place,
            hint="name the same one at both ends, or only at one",
        )
    name, spec = found[0]
    options, stream = _split_extra(entries[0], spec)
    return ResolvedEdge(*edge, name or entries[0].name, entries[0].target, options, stream, streaming)


def _entry(spec: Node, known: Mapping[str, Offer[ConnectorEntry]], what: str) -> ConnectorEntry:
    name = spec.get("name")
    if name is None:
        raise ConfigError(f"{what} has no `name`", where=spec.place, hint=way_out("", known, "connectors"))
    if name.value not in known:
        raise ConfigError(
            f"{what}: there is no connector class {name.value!r}",
            where=name.place,
            hint=way_out(name.value, known, "connectors"),
        )
    return known[str(name.value)].record


def _default(known: Mapping[str, Offer[ConnectorEntry]]) -> ConnectorEntry:
    if DEFAULT not in known:
        raise DependencyError(
            f"stages hand payloads on through {DEFAULT}, which no plugin offers", hint="pip install omni-connectors"
        )
    return known[DEFAULT].record


def _split_extra(entry: ConnectorEntry, spec: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `extra` that the transport owns, checked, and the others (CN-04)."""
    extra = spec.get("extra") or empty(Source("default"))
    if entry.options is None:
        return {}, _plain(extra)
    model = load_target(entry.options, where=f"connector {entry.name}")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(f"{entry.options!r} is no pydantic model", where=f"connector {entry.name}", hint="correct the plugin")
    aliases = {field.alias for field in model.model_fields.values() if field.alias}
    owned = set(model.model_fields) | aliases
    options = extra.with_items({key: node for key, node in extra.items() if key in owned and node.value is not None})
    check_types(model, options, name=f"{entry.name}.extra.")
    return _plain(options), {key: value for key, value in _plain(extra).items() if key not in owned}


def _plain(node: Node) -> dict[str, Any]:
    return {str(key): item.plain() for key, item in node.items() if item.value is not None}


def _check_explicit_edges(pipeline: PipelineConfig, deploy: Node) -> None:
    """Check `edges`: each is one of the pipeline's, and none is there twice (CN-08)."""
    edges = deploy.get("edges")
    seen: set[tuple[Any, Any]] = set()
    for node in edges.value if edges is not None else ():
        pair = tuple(node.value[key].value if key in node.value else None for key in ("from", "to"))
        if pair not in pipeline.edges or pair in seen:
            fault = "is there twice" if pair in seen else f"is not an edge of pipeline {pipeline.model_type!r}"
            listed = ", ".join(f"{{from: {a}, to: {b}}}" for a, b in pipeline.edges) or "none"
            raise ConfigError(f"the edge from {pair[0]} to {pair[1]} {fault}", where=node.place, hint=f"its edges are {listed}")
        seen.add((pair[0], pair[1]))
