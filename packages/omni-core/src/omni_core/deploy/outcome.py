"""What a check of a stage's resolved values returns: the values to change, the environment to set, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omni_core.deploy.provenance import Provenance
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
    """Where changed values came from, if not from where they were; `name.key` for one inside a mapping."""
    losers: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    """What lost against changed values, before what the layers already lost."""
    warnings: tuple[str, ...] = ()
    """Lines for the log; the caller passes them on."""

    def apply(self, arguments: dict[str, Any], env: dict[str, str], provenance: Provenance) -> None:
        """Change a stage's engine arguments and environment accordingly, and what is remembered of them."""
        for name, value in self.arguments.items():
            known = {path: source for path, source in provenance.sources.items() if _is_inside(path, name)}
            for path in known:
                del provenance.sources[path]
            if value is None:
                arguments.pop(name, None)
            else:
                arguments[name] = value
                self._record(name, value, Source("default"), known, provenance)
            for path in [path for path in provenance.losers if _is_inside(path, name) and path not in provenance.sources]:
                del provenance.losers[path]
        for name, text in self.env.items():
            env[name] = text
            provenance.sources.setdefault("env", Source("default", value=env))
            provenance.sources[f"env.{name}"] = Source("default", value=text)

    def _record(self, path: str, value: Any, above: Source, known: Mapping[str, Source], provenance: Provenance) -> None:
        found = self.sources.get(path) or known.get(path) or above
        provenance.sources[path] = replace(found, value=value)
        provenance.losers[path] = (*self.losers.get(path, ()), *provenance.losers.get(path, ()))
        for key, item in value.items() if isinstance(value, Mapping) else ():
            self._record(f"{path}.{key}", item, found, known, provenance)


def _is_inside(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


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
