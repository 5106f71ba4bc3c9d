"""Which keys may be written where, who owns them, and what messages say about the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from omni_core.deploy.diffusion import SHARED_WITH_DIFFUSION, DiffusionFields
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, RESERVED_NAMES
from omni_core.deploy.merge import merge
from omni_core.deploy.notes import warn
from omni_core.deploy.schema import (
    ConnectorSpec,
    DeployConfig,
    DuplexSession,
    EngineFields,
    PipelineWideFields,
    PlacementFields,
    PlatformSection,
    RestartFields,
    StageDeployConfig,
)
from omni_core.deploy.tree import Key, Node
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_core.suggest import did_you_mean, way_out

OWN = frozenset(PlacementFields.model_fields)
"""Fields of a stage that Omni reads itself."""
PIPELINE_WIDE = (*PipelineWideFields.model_fields, *RestartFields.model_fields)
"""Top-level fields that every owning stage gets."""
DEPLOY_ONLY = frozenset(PlatformSection.model_fields) - frozenset(PIPELINE_WIDE) - {"connectors", "stages", "model_runner"}
"""Scalar top-level fields that no stage gets as an engine argument."""
STAGE_ONLY_BACKENDS = frozenset({"attention_backend", "moe_backend", "linear_backend"})
"""Stage fields that the contract says are ignored at the top level (BK-02)."""
LORA = frozenset({"enable_lora", "max_lora_rank", "max_loras", "max_cpu_loras", "lora_target_modules", "fully_sharded_loras"})
"""Options of vLLM's LoRA, which no flag may set on a pipeline of several stages (LR-03)."""

CHAT = frozenset({"tool_call_parser", "chat_template"})
"""Fields of an AR stage that its runner reads and its engine does not know (`ar.chat`)."""
_AR_ONLY = CHAT | frozenset(
    {
        "attention_backend",
        "mamba_ssm_cache_dtype",
        "subtalker_sampling_params",
        "silence_ban_frames",
        "default_pooling_params",
        "reasoning_parser",
    }
)
_STRUCTURE = frozenset({"stage_id", "engine_extras"})
_TOPOLOGY = ({field.name for field in fields(PipelineConfig)} | {field.name for field in fields(StagePipelineConfig)}) - {
    "stage_id",
    "stages",
}
_OLD = {
    "stage_args": "this is the old schema: write `stages:`, each entry with `stage_id` and its fields flat",
    "stage_configs": "pass this file as the deploy configuration, with its entries under `stages:`",
    "stage_configs_path": "pass the file itself with --deploy-config",
    "engine_args": "write its fields flat, in the entry of their stage",
    "runtime": "write devices, num_replicas and env flat, in the entry of their stage",
}


def owned_names(execution_type: ExecutionType) -> frozenset[str]:
    """Return every name that a stage of this type accepts (SF-03)."""
    if execution_type is ExecutionType.DIFFUSION:
        return (OWN - _AR_ONLY) | frozenset(DiffusionFields.model_fields) | SHARED_WITH_DIFFUSION | _STRUCTURE
    names = OWN | frozenset(EngineFields.model_fields) | ENGINE_ARG_NAMES | _STRUCTURE
    return names if execution_type is ExecutionType.LLM_AR else names - _AR_ONLY


def check_document_keys(root: Node) -> Node:
    """Check the keys of a deploy file and return it without those that the contract says are ignored.

    Raises:
        ConfigError: A key is unknown, belongs to the topology (PC-01) or to the old schema (DY-08).
    """
    ignored = set()
    for key, node in root.items():
        if key in STAGE_ONLY_BACKENDS:
            warn(f"{node.key_place}: {key} is ignored here: set it under the stages that it is for")
            ignored.add(key)
            continue
        _check_key(key, node, DeployConfig.model_fields, "top-level fields", stage_fields=True)
    root = root.with_items({key: node for key, node in root.items() if key not in ignored})
    _check_section(root)
    for name, section in _entries(root, "platforms"):
        for key, node in section.items():
            _check_key(key, node, PlatformSection.model_fields, f"fields of platforms.{name}", stage_fields=True)
        _check_section(section)
    for key, node in (root.get("duplex_session") or root.with_items({})).items():
        _check_key(key, node, DuplexSession.model_fields, "fields of duplex_session")
    return root


def _check_section(section: Node) -> None:
    for name, spec in _entries(section, "connectors"):
        for key, node in spec.items():
            _check_key(key, node, ConnectorSpec.model_fields, f"fields of connectors.{name}")
    stages = section.get("stages")
    for entry in stages.value if stages is not None and isinstance(stages.value, list) else ():
        check_stage_keys(entry)


def check_stage_keys(entry: Node) -> None:
    """Check the keys of one stage's fields, whatever the stage is.

    Raises:
        ConfigError: A key is unknown, reserved (SF-04), or belongs to the topology or the old schema.
    """
    known = frozenset(StageDeployConfig.model_fields) | ENGINE_ARG_NAMES
    stage_id = entry.get("stage_id")
    noun = "fields of a stage" if stage_id is None else f"fields of stage {stage_id.value}, whatever its type"
    for key, node in entry.items():
        _check_key(key, node, known, noun)
    extras = entry.get("engine_extras")
    for key, node in extras.items() if extras is not None else ():
        _check_key(key, node, known - OWN - _STRUCTURE, "arguments of an engine", prefix="engine_extras.")


def _check_key(key: Key, node: Node, known: Iterable[str], noun: str, *, prefix: str = "", stage_fields: bool = False) -> None:
    known = frozenset(known)
    if key in known:
        return
    name = f"{prefix}{key}"
    where = node.key_place or node.place
    if key in RESERVED_NAMES:
        raise ConfigError(f"{name} cannot be set", where=where, hint=RESERVED_NAMES[str(key)], param=name)
    if key in _OLD:
        raise ConfigError(f"{name} is not a field any more", where=where, hint=_OLD[str(key)], param=name)
    if stage_fields and key in frozenset(StageDeployConfig.model_fields) | ENGINE_ARG_NAMES:
        raise ConfigError(f"{name} is a field of a stage", where=where, hint="write it under `stages:`", param=name)
    if key in _TOPOLOGY:
        raise ConfigError(
            f"{name} is topology, which a deploy file cannot change",
            where=where,
            hint="define a pipeline of its own in a plugin, and choose it with `pipeline:`",
            param=name,
        )
    close = did_you_mean(key, known)
    listed = close or (way_out(key, known, noun) if len(known) < 40 else f"see docs/deploy.md for the {noun}")
    raise ConfigError(f"{name} is not one of the {noun}", where=where, hint=listed, param=name)


def check_ownership(stage: StagePipelineConfig, entry: Node) -> None:
    """Check that the stage owns every key that was written for it, `engine_extras` folded in (SF-03).

    Raises:
        ConfigError: It does not; the message names the stage, its type and the keys.
    """
    owned = owned_names(stage.execution_type)
    foreign = [(key, node) for key, node in entry.items() if key not in owned and node.value is not None]
    if not foreign:
        return
    names = ", ".join(str(key) for key, _ in foreign)
    hint = "remove it"
    if stage.execution_type is ExecutionType.DIFFUSION:
        hints = {
            "attention_backend": "set diffusion_attention_config: {default: BACKEND}",
            "enable_lora": "set lora_path, lora_scale and lora_backend",
        }
        hint = hints.get(str(foreign[0][0]), hint)
    raise ConfigError(
        f"stage {stage.stage_id} ({stage.model_stage}) of type {stage.execution_type} has no field {names}",
        where=foreign[0][1].key_place or foreign[0][1].place,
        hint=hint,
        param=str(foreign[0][0]),
    )


def normalise(root: Node) -> Node:
    """Return a checked file with every `stages` list as a mapping by id, ready to merge.

    Raises:
        ConfigError: An entry has no `stage_id`, or two have the same (SF-02).
    """
    items = {key: _by_id(node) if key == "stages" else node for key, node in root.items()}
    platforms = root.get("platforms")
    if platforms is not None:
        items["platforms"] = platforms.with_items(
            {name: normalise(section) if section.is_mapping else section for name, section in platforms.items()}
        )
    return root.with_items(items)


def _by_id(stages: Node) -> Node:
    if stages.value is None:
        return stages
    found: dict[Key, Node] = {}
    for entry in stages.value:
        stage_id = entry.get("stage_id")
        if stage_id is None:
            raise ConfigError("a stage entry has no stage_id", where=entry.place, hint="say which stage it is about")
        if stage_id.value in found:
            raise ConfigError(
                f"stage {stage_id.value} is here twice, first at {found[stage_id.value].place}",
                where=entry.place,
                hint="write one entry for each stage",
            )
        found[stage_id.value] = fold_extras(entry.with_items({k: node for k, node in entry.items() if k != "stage_id"}))
    return stages.with_items(found)


def fold_extras(entry: Node) -> Node:
    """Return a stage's fields with `engine_extras` among them; a field of the entry itself wins over the same name there."""
    extras = entry.get("engine_extras")
    items = {key: node for key, node in entry.items() if key != "engine_extras"}
    for key, node in extras.items() if extras is not None else ():
        own = items.get(key)
        if own is None:
            items[key] = node
        elif own.is_mapping and node.is_mapping:
            items[key] = merge(node, own)
        elif own.plain() != node.plain():
            warn(f"{node.key_place}: engine_extras.{key} is ignored, {own.place} sets it too")
            items[key] = own.over(node, own.tag)
    return entry.with_items(items)


def _entries(section: Node, field: str) -> list[tuple[Key, Node]]:
    node = section.get(field)
    return list(node.items()) if node is not None else []
