"""Check that what pipelines name by target strings is there, before anything starts and without importing it (PC-08)."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig
from omni_core.suggest import did_you_mean
from omni_core.target import find_module, split_target

_DEFINED = re.compile(r"^(?:class|def|async def)\s+(\w+)|^(\w+)\s*[:=]", re.MULTILINE)


def check_targets(pipeline: PipelineConfig) -> None:
    """Check that the module of every target can be found and that its text has the name.

    Raises:
        ConfigError: One is not there; the message names the pipeline, the stage, the field and the target.
    """
    for stage in pipeline.stages:
        for name, target in stage.targets.items():
            _check(target, f"pipeline {pipeline.model_type!r}, stage {stage.stage_id}, {name}")
    for name in ("speech", "duplex_plugin"):
        target = getattr(pipeline, name)
        # A duplex plugin may also be an id, which omni-duplex looks up among what plugins offer.
        if target is not None and (name == "speech" or ":" in target):
            _check(target, f"pipeline {pipeline.model_type!r}, {name}")


def _check(target: str, where: str) -> None:
    find_module(target, where=where)
    module, path = split_target(target, where=where)
    attribute = path.split(".")[0]
    text = _source(importlib.util.find_spec(module))
    # A name can be made in other ways than those that `_DEFINED` knows, but hardly without being written somewhere.
    if text is None or re.search(rf"\b{re.escape(attribute)}\b", text):
        return
    names = [name for groups in _DEFINED.findall(text) for name in groups if name]
    hint = did_you_mean(attribute, names) or f"correct the target {target!r}"
    raise ConfigError(f"the module of {target!r} has no {attribute}", where=where, hint=hint)


def _source(spec: ModuleSpec | None) -> str | None:
    """Return the text of a module; None for one that is not in a Python file, or makes its names on demand."""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        text = Path(spec.origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # importing the module will say what is wrong with it
    return None if "def __getattr__" in text else text
