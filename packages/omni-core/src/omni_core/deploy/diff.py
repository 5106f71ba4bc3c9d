"""What differs between two resolved deployments, by stage and field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_core.deploy.explain import Setting, all_settings
from omni_core.stage import ResolvedPipeline, Source


@dataclass(frozen=True)
class Difference:
    """One field that the two sides set differently. A side that has no such field is None."""

    stage: int | None
    field: str
    left: Setting | None
    right: Setting | None

    def as_plain(self) -> dict[str, Any]:
        """Return this difference for JSON."""
        return {"stage": self.stage, "field": self.field, "left": _side(self.left), "right": _side(self.right)}


def _side(setting: Setting | None) -> dict[str, Any] | None:
    if setting is None:
        return None
    return {"value": setting.value, "layer": setting.source.layer, "place": setting.source.place}


def compare(left: ResolvedPipeline, right: ResolvedPipeline) -> list[Difference]:
    """Return every field whose value differs, in the order of the left side; what only the right side has comes last.

    Where a value comes from makes no difference, and a field that one side leaves out is equal to a null on the other.
    """
    sides = [{(setting.stage, setting.field): setting for setting in _facts(side)} for side in (left, right)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    found = [Difference(stage, field, sides[0].get((stage, field)), sides[1].get((stage, field))) for stage, field in keys]
    different = [item for item in found if _value(item.left) != _value(item.right)]
    return sorted(different, key=lambda item: -1 if item.stage is None else item.stage)


def _facts(resolved: ResolvedPipeline) -> list[Setting]:
    """Return a deployment's settings with those facts that no field says: the pipeline, the platform and each model class."""
    fixed = Source("pipeline")
    facts = [
        Setting(None, "pipeline", resolved.config.model_type, fixed),
        Setting(None, "platform", resolved.platform, fixed),
    ]
    for stage in resolved.stages:
        facts.append(Setting(stage.stage_id, "architecture", stage.architecture, fixed))
        facts.append(Setting(stage.stage_id, "runner", stage.runner, fixed))
        facts.append(Setting(stage.stage_id, "model", stage.model, fixed))
    return [*facts, *all_settings(resolved)]


def _value(setting: Setting | None) -> Any:
    return None if setting is None else setting.value
