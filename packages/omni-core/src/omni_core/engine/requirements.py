"""What must be there before the stages of a deployment can start; checked in the main process, before any other."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

from omni_core.errors import DependencyError
from omni_core.stage import ResolvedPipeline, ResolvedStage


def check_requirements(resolved: ResolvedPipeline, own_stages: Collection[int] | None = None) -> None:
    """Check that something runs every stage, and that what it needs is installed.

    Args:
        resolved: The pipeline.
        own_stages: Ids of those of its stages that run here; None is all.

    Raises:
        DependencyError: Nobody offers the architecture of a stage, or a package is missing.
    """
    here = [stage for stage in resolved.stages if own_stages is None or stage.stage_id in own_stages]
    missing = [f"{stage.architecture} of stage {stage.name}" for stage in here if not stage.runner]
    if missing:
        raise DependencyError(
            f"this version cannot run pipeline {resolved.config.model_type!r}: nobody offers the architecture "
            f"{' and '.join(missing)}",
            hint="update the package of this model, or install a plugin that offers it through omni_architectures",
        )
    for stage in here:
        _check_modules(stage)


def _check_modules(stage: ResolvedStage) -> None:
    missing = [name for name in stage.requires if importlib.util.find_spec(name) is None]
    if not missing:
        return
    extra = "cpu" if stage.platform == "cpu" else "vllm"
    raise DependencyError(
        f"stage {stage.name} needs {' and '.join(missing)}, not installed here",
        where=f"stage {stage.name}",
        hint=f"pip install 'omni-core[{extra}]'",
    )
