"""What a check of a stage's resolved values returns: the values to change, the environment to set, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source


@dataclass(frozen=True)
class Outcome:
    """What a check of one stage comes to. Nothing in it has happened yet: `apply` does it."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Engine arguments that replace those of the stage; None takes one away."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the stage's processes need."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where changed values came from, if not from where they were."""
    warnings: tuple[str, ...] = ()
    """Lines for the log; the caller logs them once."""

    def apply(self, arguments: dict[str, Any], env: dict[str, str], sources: dict[str, Source]) -> None:
        """Change a stage's engine arguments, environment and sources accordingly."""
        for name, value in self.arguments.items():
            if value is None:
                arguments.pop(name, None)
            else:
                arguments[name] = value
        env.update(self.env)
        sources.update({f"env.{name}": Source("default") for name in self.env})
        sources.update(self.sources)


def stage_name(stage: StagePipelineConfig) -> str:
    """Return `stage 0 (talker)`."""
    return f"stage {stage.stage_id} ({stage.model_stage})"


def place_of(sources: Mapping[str, Source], *path: object) -> str:
    """Return where a value was written: the place of the longest part of its path that has one."""
    parts = [str(part) for part in path]
    while parts:
        if (source := sources.get(".".join(parts))) is not None and source.place:
            return source.place
        parts.pop()
    return ""
