"""The checks of `lint`, one function each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.explain import Setting, all_settings, describe_source, find_source, show_value
from omni_core.deploy.lint import Check, Finding, Subject
from omni_core.deploy.memory import ENGINE_UTILIZATION, replica_device_ids
from omni_core.deploy.platform_layer import KNOWN
from omni_core.deploy.tree import Key, Node
from omni_core.pipeline import ExecutionType
from omni_core.stage import ResolvedStage
from omni_core.suggest import did_you_mean, way_out

_DEPRECATED = {
    name: field.description
    for name, field in DiffusionFields.model_fields.items()
    if field.description is not None and field.description.startswith("Deprecated")
}


def resolver_warnings(subject: Subject) -> Iterator[Finding]:
    """Repeat what resolving warned of."""
    for text in subject.resolved.warnings:
        yield Finding("warning", "warning", text)


def unused_connectors(subject: Subject) -> Iterator[Finding]:
    """Find connectors that no edge uses."""
    used = {edge.connector for stage in subject.resolved.stages for edge in stage.outputs}
    for section in _sections(subject):
        for name, spec in _items(section, "connectors"):
            if spec.value is not None and name not in used:
                close = way_out(name, used, "ones in use")
                hint = f"name it in output_connectors or input_connectors of a stage, or remove it; {close}"
                yield Finding("warning", "unused connector", f"no edge uses the connector {name!r}", spec.key_place, hint)


def platform_sections(subject: Subject) -> Iterator[Finding]:
    """Find platform sections that can never apply."""
    names = {*subject.platforms, *KNOWN}
    for name, section in _items(subject.files, "platforms"):
        if name not in names:
            text = f"no platform is called {name}, so this section never applies"
            yield Finding(
                "warning", "platform", text, section.key_place, did_you_mean(name, names) or way_out("", names, "names")
            )
        elif section.value is None or not section.value:
            yield Finding("warning", "platform", f"the section of {name} is empty", section.key_place, "remove it")


def deprecated_spellings(subject: Subject) -> Iterator[Finding]:
    """Find fields that have a better spelling."""
    for section in _sections(subject):
        for _, entry in _items(section, "stages"):
            for name, node in entry.items():
                if name in _DEPRECATED and node.value is not None:
                    hint = _DEPRECATED[str(name)] or ""
                    yield Finding("warning", "deprecated", f"{name} is deprecated", node.key_place or node.place, hint)


def unused_mps(subject: Subject) -> Iterator[Finding]:
    """Find reasons for which MPS is not used although `cuda_mps` asks for it (MP-02)."""
    mps = subject.resolved.mps
    for refusal in mps.refusals if mps is not None else ():
        place = find_source("cuda_mps", subject.resolved.sources).place
        hint = "set cuda_mps: false, or change what is in its way"
        yield Finding("warning", "no effect", f"cuda_mps has no effect: {refusal.message}", place, hint)


def crowded_devices(subject: Subject) -> Iterator[Finding]:
    """Find devices whose stages may use more than all of its memory together (DV-09)."""
    shares: dict[str, list[tuple[ResolvedStage, float]]] = {}
    for stage in subject.resolved.stages:
        share = _utilization(stage)
        if share is None or stage.platform == "cpu":
            continue
        for devices in replica_device_ids(stage):
            for device in devices:
                shares.setdefault(device, []).append((stage, share))
    for device, found in shares.items():
        total = sum(share for _, share in found)
        if len(found) > 1 and total > 1 + 1e-9:
            listed = " + ".join(f"{share:g} of stage {stage.name}" for stage, share in found)
            stage = found[-1][0]
            yield Finding(
                "warning",
                "memory",
                f"device {device}: gpu_memory_utilization adds up to {total:g} ({listed})",
                find_source("gpu_memory_utilization", stage.sources).place,
                "lower it until the sum is below 1, or give a stage other devices; omni config memory has the table",
            )


def _utilization(stage: ResolvedStage) -> float | None:
    """Return the share of a device that a stage takes; None where another field decides."""
    if stage.engine_args.get("kv_cache_memory_bytes"):
        return None
    is_ar = stage.topology.execution_type is ExecutionType.LLM_AR
    found = stage.engine_args.get("gpu_memory_utilization", ENGINE_UTILIZATION if is_ar else None)
    return None if found is None else float(found)


def broadcast_parallelism(subject: Subject) -> Iterator[Finding]:
    """Find a --tensor-parallel-size that reaches several stages, where one was probably meant (DV-04)."""
    name = "tensor_parallel_size"
    typed = [stage for stage in subject.resolved.stages if find_source(name, stage.sources).layer == "flag"]
    if len(typed) < 2 or typed[0].engine_args[name] == 1:
        return
    size = typed[0].engine_args[name]
    listed = ", ".join(stage.name for stage in typed)
    example = f"""--stage-overrides '{{"{typed[0].stage_id}": {{"{name}": {size}}}}}'"""
    text = f"--tensor-parallel-size {size} is given to {len(typed)} stages ({listed}); each needs {size} devices"
    yield Finding("warning", "broadcast", text, "--tensor-parallel-size", f"for one stage alone: {example}")


def graph_buckets(subject: Subject) -> Iterator[Finding]:
    """Find decoders whose captured graphs do not fit their largest batch (TT-16)."""
    for stage in subject.resolved.stages:
        for edge in stage.outputs:
            policy = {**edge.options, **edge.stream}
            consumer = subject.resolved.stages[edge.to_stage]
            yield from _graph_findings(policy, consumer, subject, edge.connector)


def _graph_findings(policy: Mapping[str, Any], consumer: ResolvedStage, subject: Subject, name: str) -> Iterator[Finding]:
    largest, buckets = policy.get("decode_batch_max_size"), _sizes(policy.get("decode_cudagraph_batch_sizes"))
    requests = consumer.engine_args.get("max_num_seqs")
    place = _option_place(subject, name, "decode_batch_max_size")
    if not isinstance(largest, int) or largest <= 0:
        return
    if buckets and max(buckets) != largest:
        text = (
            f"the largest graph of stage {consumer.name} is for {max(buckets)} requests, but decode_batch_max_size is {largest}"
        )
        hint = f"set decode_batch_max_size to {max(buckets)}, or add {largest} to decode_cudagraph_batch_sizes"
        yield Finding("warning", "graph buckets", text, place, hint)
    if isinstance(requests, int) and largest > requests:
        text = f"decode_batch_max_size is {largest}, but stage {consumer.name} runs {requests} requests at most (max_num_seqs)"
        yield Finding("warning", "graph buckets", text, place, "raise max_num_seqs, or lower decode_batch_max_size")


def _sizes(value: Any) -> list[int]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    return [int(part) for part in parts if isinstance(part, int) or (isinstance(part, str) and part.strip().isdecimal())]


def _option_place(subject: Subject, connector: str, option: str) -> str:
    spec = dict(_items(subject.files, "connectors")).get(connector)
    node = None if spec is None else spec.find(["extra", option])
    return "" if node is None else node.place


def unused_graphs(subject: Subject) -> Iterator[Finding]:
    """Find graph settings of stages that capture none."""
    for stage in subject.resolved.stages:
        if stage.engine_args.get("enforce_eager") is not True:
            continue
        for name in ("cudagraph_capture_sizes", "cudagraph_mode", "max_cudagraph_capture_size"):
            field = f"compilation_config.{name}"
            config = stage.engine_args.get("compilation_config") or {}
            if name in config and config[name] != "NONE":
                source = find_source(field, stage.sources)
                hint = f"remove it, or set enforce_eager: false ({find_source('enforce_eager', stage.sources).place})"
                yield Finding(
                    "warning", "no effect", f"stage {stage.name}: {field} has no effect with enforce_eager", source.place, hint
                )


def repeated_values(subject: Subject) -> Iterator[Finding]:
    """Find values that repeat what is below them, and values that the pipeline replaces."""
    for setting in all_settings(subject.resolved):
        below = setting.losers[0] if setting.losers else setting.source
        if "default" in {below.layer, setting.source.layer} or below is setting.source:
            continue
        if setting.source.layer == "pipeline":
            if below.value != setting.value:
                text = f"{_name(setting)} has no effect: the pipeline fixes {show_value(setting.value)}"
                yield Finding("warning", "no effect", text, below.place, "remove it")
        elif below.value == setting.value:
            text = f"{_name(setting)} repeats {show_value(setting.value)} of {' '.join(describe_source(below).split())}"
            yield Finding(
                "warning", "no effect", text, setting.source.place, "remove it, unless it shall stay when that changes"
            )


def overlays_below_platforms(subject: Subject) -> Iterator[Finding]:
    """Find values of an overlay that a platform section below it replaces, which surprises people (PR-03)."""
    for setting in all_settings(subject.resolved):
        below = next((loser for loser in setting.losers if loser.layer == "overlay"), None)
        if setting.source.layer != "platform" or below is None or below.value == setting.value:
            continue
        platform = subject.resolved.platform
        text = f"{_name(setting)} has no effect on {platform}: the platform section sets {show_value(setting.value)}"
        hint = f"write it under platforms.{platform} too, which is above {setting.source.place}"
        yield Finding("warning", "no effect", text, below.place, hint)


def _name(setting: Setting) -> str:
    return setting.field if setting.stage is None else f"stage {setting.stage}: {setting.field}"


def _sections(subject: Subject) -> list[Node]:
    """Return the files' top level and the section of every platform."""
    return [subject.files, *(section for _, section in _items(subject.files, "platforms") if section.is_mapping)]


def _items(section: Node, field: str) -> Iterable[tuple[Key, Node]]:
    node = section.get(field)
    return [] if node is None else list(node.items())


CHECKS: tuple[Check, ...] = (
    resolver_warnings,
    unused_connectors,
    platform_sections,
    deprecated_spellings,
    unused_mps,
    crowded_devices,
    broadcast_parallelism,
    graph_buckets,
    unused_graphs,
    repeated_values,
    overlays_below_platforms,
)
