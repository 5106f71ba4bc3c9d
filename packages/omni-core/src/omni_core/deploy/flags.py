"""Command-line flags made from the schema: one for each field, with the field's docstring as its help."""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.overrides import DEPLOY_FLAGS, NOT_BROADCAST, SAMPLING_OPTION, flag_name, parse_stage_overrides
from omni_core.deploy.schema import DeployConfig, EngineFields, PipelineWideFields, PlacementFields, StageDeployConfig
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager

_DEPLOYMENT = [name for name in DeployConfig.model_fields if name in DEPLOY_FLAGS]
_PLACEMENT = [name for name in PlacementFields.model_fields if name not in {*NOT_BROADCAST, *_DEPLOYMENT}]

_GROUPS: tuple[tuple[str, str, dict[str, FieldInfo]], ...] = (
    (
        "deployment",
        "How the pipeline runs. A flag that is typed beats the deploy files; --stage-overrides beats flags.",
        {
            **{name: DeployConfig.model_fields[name] for name in _DEPLOYMENT},
            **{name: PlacementFields.model_fields[name] for name in _PLACEMENT},
        },
    ),
    (
        "engine",
        "Given to every stage whose engine has the field.",
        {**PipelineWideFields.model_fields, **EngineFields.model_fields},
    ),
    ("diffusion", "Given to every stage that denoises.", dict(DiffusionFields.model_fields)),
)

_NAMES = frozenset(name for _, _, fields in _GROUPS for name in fields) | {
    "revision",
    "deploy_config",
    "stage_overrides",
    "set",
    "default_sampling_params",
    "tokenizer",
}
_ALIAS = "flag of a pipeline: "
"""What the namespace has in front of the names that pipelines give to flags of their own."""


def add_deploy_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a deployment. A flag that is not typed leaves no trace in the namespace (PR-02)."""
    title, description, fields = _GROUPS[0]
    group = parser.add_argument_group(title, description)
    group.add_argument(
        "--deploy-config",
        metavar="FILE",
        action="append",
        help="Deploy file: a path, or the name of a bundled one. May be repeated; later files go on top.",
    )
    group.add_argument(
        "--stage-overrides",
        metavar="JSON",
        type=_stage_overrides,
        help="""Fields of single stages, which beat all flags: '{"0": {"max_num_seqs": 8}}'.""",
    )
    group.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=argparse.SUPPRESS,
        help="One value, written as in a deploy file: stages.1.gpu_memory_utilization=0.5. May be repeated.",
    )
    group.add_argument(
        "--default-sampling-params",
        metavar="JSON",
        type=_sampling_params,
        default=argparse.SUPPRESS,
        help="""Sampling parameters of requests that set none, by stage: '{"0": {"temperature": 0.7}}'.""",
    )
    group.add_argument(
        "--tokenizer",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="Tokenizer of stages that name none of their own.",
    )
    group.add_argument(
        "--revision",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="Branch, tag or commit of a model on the Hugging Face Hub.",
    )
    _add_fields(group, fields)
    _add_aliases(group)
    for title, description, fields in _GROUPS[1:]:
        _add_fields(parser.add_argument_group(title, description), fields)


def typed_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return what the user typed, by field name, `deploy_config` and `stage_overrides` included: arguments of `AsyncOmni`."""
    given = {name.removeprefix(_ALIAS): value for name, value in vars(namespace).items() if name in _NAMES or _ALIAS in name}
    return {name: value for name, value in given.items() if value is not None}


def _add_fields(group: argparse._ArgumentGroup, fields: dict[str, FieldInfo]) -> None:
    for name, field in fields.items():
        text = (field.description or "").replace("%", "%%").replace("`", "")
        kind = _kind(field.annotation)
        if kind is bool:
            group.add_argument(flag_name(name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
            continue
        convert, metavar = _converter(kind)
        if get_origin(kind) is Literal:
            choices = list(get_args(kind))
            group.add_argument(flag_name(name), type=convert, choices=choices, default=argparse.SUPPRESS, help=text)
            continue
        group.add_argument(flag_name(name), type=convert, metavar=metavar, default=argparse.SUPPRESS, help=text)


def _add_aliases(group: argparse._ArgumentGroup) -> None:
    """Add the flags that pipelines of installed plugins have of their own (PR-07)."""
    aliases = {
        alias: (pipeline.model_type, owner, name)
        for _, pipelines in plugin_manager().collect("omni_pipelines")
        for pipeline in pipelines
        for alias, (owner, name) in pipeline.stage_cli_aliases.items()
    }
    for alias, (pipeline, owner, name) in aliases.items():
        field = StageDeployConfig.model_fields.get(name)
        convert, metavar = _converter(_kind(field.annotation)) if field is not None else (str, "TEXT")
        group.add_argument(
            flag_name(alias),
            dest=_ALIAS + alias,
            type=convert,
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=f"Of {pipeline}: {name} of stage {owner}.",
        )


def _kind(annotation: Any) -> Any:
    """Return the one type of an annotation, None and constraints left out; of several types the last."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return _kind([part for part in get_args(annotation) if part is not type(None)][-1])
    return annotation


def _converter(kind: Any) -> tuple[Callable[[str], Any], str]:
    if get_origin(kind) is Literal:
        return _converter(type(get_args(kind)[0]))
    if kind is int:
        return _integer, "N"
    if kind is float:
        return float, "X"
    if get_origin(kind) is dict:
        return _json_object, "JSON"
    if get_origin(kind) is list:
        return _list, "LIST"
    return str, "TEXT"


def _integer(text: str) -> int:
    """Return a whole number; `16k` is 16 000 and `16K` is 16 384, as vLLM reads them."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    factor = factors.get(text[-1:], 1)
    try:
        return int(text[:-1] if factor != 1 else text) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return found


def _list(text: str) -> list[Any]:
    """Return a JSON list, or the parts of a comma list as numbers where all of them are."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no JSON list: {error.msg}") from error
        return list(found)
    parts = [part.strip() for part in text.split(",")]
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else parts


def _stage_overrides(text: str, option: str = "--stage-overrides") -> dict[int, dict[str, Any]]:
    try:
        return parse_stage_overrides(text, option)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.message} ({error.hint})") from error


def _sampling_params(text: str) -> dict[int, dict[str, Any]]:
    return _stage_overrides(text, SAMPLING_OPTION)
