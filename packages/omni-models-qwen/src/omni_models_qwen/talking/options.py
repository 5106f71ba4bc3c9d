"""A stage's own options, those of `additional_config`, as checks of deployments read them. Main process; nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omni_core.deploy.notes import warn
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage

_FAMILIES = ("talker_", "code_predictor_", "ref_code_", "codec_", "decode_")
"""How names of our options begin. Other keys of `additional_config` belong to vLLM's platforms."""
_QUANTIZATION = "quantization_config"
"""Holds for what vLLM loads; bundled files set it for every stage of a platform."""
IN_THE_EDGE = " (options of the edge stand under connectors.NAME.extra)"
"""What a hint says more where options are not the stage's but the edge's."""


def own_options(stage: ResolvedStage) -> Mapping[str, Any]:
    """Return the options in a stage's `additional_config`."""
    return stage.engine_args.get("additional_config") or {}


def place_of(stage: ResolvedStage, key: str) -> str:
    """Return where an option of `additional_config` is written, for messages."""
    source = stage.sources.get(f"additional_config.{key}") or stage.sources.get("additional_config")
    return source.place if source is not None and source.place else f"stage {stage.name}"


def report_overrides(stages: Sequence[ResolvedStage]) -> None:
    """Warn about `hf_overrides` that do not hold for all of a stage.

    Args:
        stages: Thinker, talker and what decodes, the first one alone or all.
    """
    for stage in stages[1:]:
        if named := sorted(stage.config_overrides.keys() - {_QUANTIZATION}):
            talks = stage.topology.model_stage == "talker"
            effect = "for its decoder alone: ids and voices are those of config.json" if talks else "no effect"
            warn(f"stage {stage.name}: hf_overrides: {', '.join(named)}: {effect}")


def check_known(stage: ResolvedStage, known: Collection[str], owner: str, *, beside: str = "") -> None:
    """Check that no option of a stage is named like ours and is none.

    Args:
        stage: The stage.
        known: The options that it has.
        owner: Whose they are, for the message.
        beside: What the hint says more.

    Raises:
        ConfigError: One is not among them.
    """
    for key in own_options(stage):
        if key in known or not key.startswith(_FAMILIES):
            continue
        near = difflib.get_close_matches(key, known, 1)
        listed = f"the options are {', '.join(sorted(known))}" if known else "remove it"
        hint = (f"did you mean {near[0]}?" if near else listed) + beside
        raise ConfigError(f"{key!r} is not an option of {owner}", where=place_of(stage, key), hint=hint, param=key)
