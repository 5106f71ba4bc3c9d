"""The schema of deploy files for tools and people: JSON Schema, as editors read it, and the page docs/deploy-schema.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, RESERVED_NAMES, engine_arg_choices, engine_arg_kinds
from omni_core.deploy.keys import owned_names
from omni_core.deploy.schema import (
    ConnectorSpec,
    DeployConfig,
    DuplexSession,
    EngineFields,
    PipelineWideFields,
    PlacementFields,
    StageDeployConfig,
)
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCOPES = {ExecutionType.LLM_AR: "AR", ExecutionType.LLM_GENERATION: "generation", ExecutionType.DIFFUSION: "diffusion"}

_DEFAULT = re.compile(r" ?\(default: ([^)]+)\)")
_JSON_TYPES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "mapping": "object",
}
_ENGINE_ARGS = sorted(ENGINE_ARG_NAMES - set(StageDeployConfig.model_fields) - set(RESERVED_NAMES))


def deploy_schema(pipeline: PipelineConfig | None = None) -> dict[str, Any]:
    """Return the JSON Schema of deploy files, or of those for one pipeline: its stages and what each of them owns."""
    schema = DeployConfig.model_json_schema()
    for definition in (schema, *schema["$defs"].values()):
        for field in definition.get("properties", {}).values():
            field.pop("title", None)
            if field.get("default", 0) is None:
                del field["default"]
    stage = schema["$defs"]["StageDeployConfig"]
    stage["properties"] |= {name: {"description": "An argument of vLLM's engine.", **_argument(name)} for name in _ENGINE_ARGS}
    stage["required"] = ["stage_id"]
    _widen(stage["properties"])
    schema = {"$schema": DRAFT, **schema, "title": "Omni deploy file"}
    if pipeline is not None:
        _narrow(schema, pipeline)
    return schema


def _argument(name: str) -> dict[str, Any]:
    """Return the JSON Schema of an argument of the engine, null included as everywhere."""
    if choices := engine_arg_choices(name):
        return {"enum": [*(int(choice) if choice.isdigit() else choice for choice in choices), None]}
    return {"type": [*(_JSON_TYPES[kind] for kind in engine_arg_kinds(name)), "null"]}


def _widen(fields: dict[str, Any]) -> None:
    """Allow what the reader takes besides the declared types: ids of devices as numbers, numbers as environment."""
    fields["devices"]["anyOf"] += [{"type": "integer"}, {"type": "array", "items": {"type": ["integer", "string"]}}]
    for option in fields["env"]["anyOf"]:
        if option.get("type") == "object":
            option["additionalProperties"] = {"type": ["string", "number"]}


def _narrow(schema: dict[str, Any], pipeline: PipelineConfig) -> None:
    definitions = schema["$defs"]
    names = [_add_stage(definitions, stage) for stage in pipeline.stages]
    del definitions["StageDeployConfig"]
    choice = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    for owner in (schema, definitions["PlatformSection"]):
        for option in owner["properties"]["stages"]["anyOf"]:
            if option.get("type") == "array":
                option["items"] = choice
    schema["title"] = f"Omni deploy file of {pipeline.model_type}"
    schema["properties"]["pipeline"]["examples"] = [pipeline.model_type]


def _add_stage(definitions: dict[str, Any], stage: StagePipelineConfig) -> str:
    """Add a definition of one stage's entry and return its name."""
    general = definitions["StageDeployConfig"]
    owned = owned_names(stage.execution_type)
    fields = {name: field for name, field in general["properties"].items() if name in owned}
    fields["stage_id"] = {**fields["stage_id"], "const": stage.stage_id}
    name = f"Stage{stage.stage_id}"
    definitions[name] = {
        **general,
        "title": f"Stage {stage.stage_id}, {stage.model_stage}",
        "description": f"Stage {stage.stage_id} ({stage.model_stage}), {stage.execution_type}.",
        "properties": fields,
    }
    return name


def schema_page() -> str:
    """Return docs/deploy-schema.md."""
    parts = [
        "# Fields of deploy files",
        "<!-- Made by `omni config schema --markdown`: do not edit it here. -->",
        "Each field with its type, its default and the stages that own it. [deploy.md](deploy.md) explains how they work "
        "together, and [operate-config.md](operate-config.md) has examples. `null` erases what lower layers say.",
        *_section("Top level", DeployConfig, skip=PipelineWideFields),
        *_section("Top level, for every stage that sets no value of its own", PipelineWideFields),
        *_section("Stages: read by Omni", PlacementFields, extra=("stage_id", "engine_extras")),
        *_section("Stages: given to the engine", EngineFields),
        *_section("Stages that denoise", DiffusionFields),
        *_section("Entries of `connectors`", ConnectorSpec),
        *_section("`duplex_session`", DuplexSession),
        "## Further arguments of the engine",
        "A stage of the type AR or generation also takes these arguments of vLLM. Their types and choices are checked with the "
        "file, what is inside of them and how they fit together by vLLM.",
        "\n".join(f"- `{name}`: {_type(_argument(name))}" for name in _ENGINE_ARGS),
    ]
    return "\n\n".join(parts) + "\n"


def _section(
    title: str, model: type[BaseModel], *, skip: type[BaseModel] | None = None, extra: tuple[str, ...] = ()
) -> Iterator[str]:
    yield f"## {title}"
    names = [*extra, *(name for name in model.model_fields if skip is None or name not in skip.model_fields)]
    is_stage = issubclass(model, (PlacementFields, EngineFields, DiffusionFields))
    properties = deploy_properties(StageDeployConfig if is_stage else model)
    columns = ["field", "type", "default", *(["stages"] if is_stage else []), "meaning"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name in names:
        field = properties[name]
        text, default = split_default(field.get("description", ""))
        scope = [_scope(name)] if is_stage else []
        lines.append(f"| {' | '.join([f'`{name}`', _type(field), default or '-', *scope, text])} |")
    yield "\n".join(lines)


def deploy_properties(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the JSON Schema of a model's fields."""
    properties: dict[str, Any] = model.model_json_schema()["properties"]
    if "devices" in properties:
        _widen(properties)
    return properties


def split_default(text: str) -> tuple[str, str]:
    """Return a field's text without `(default: VALUE)`, and the value."""
    match = _DEFAULT.search(text)
    return (text, "") if match is None else (_DEFAULT.sub("", text), match.group(1))


def _scope(name: str) -> str:
    owners = [scope for kind, scope in SCOPES.items() if name in owned_names(kind)]
    return "all" if len(owners) == len(SCOPES) else ", ".join(owners)


def _type(field: Mapping[str, Any]) -> str:
    """Return a field's type in a few words; that it may be null goes without saying."""
    options = field.get("anyOf", [field])
    return " or ".join(dict.fromkeys(_type_name(option) for option in options if option.get("type") != "null"))


def _type_name(option: Mapping[str, Any]) -> str:
    if "enum" in option:
        return ", ".join(f"`{value}`" for value in option["enum"] if value is not None)
    if "$ref" in option:
        return "mapping"
    kind = option.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(_type_name({**option, "type": item}) for item in kind if item != "null")
    names = {"array": "list", "object": "mapping", "boolean": "true or false", "number": "number", "integer": "integer"}
    limits = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
    bounds = " and ".join(f"{word} {option[key]:g}" for key, word in limits if key in option)
    return f"{names.get(kind, kind)} {bounds}".rstrip()
