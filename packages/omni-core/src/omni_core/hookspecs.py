"""The hooks that core calls. Every name begins with `omni_`; results are light records whose heavy part is a target string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.capabilities import ModelCapabilities
    from omni_core.commands import CommandEntry
    from omni_core.connector import ConnectorEntry
    from omni_core.model_info import ModelInfo
    from omni_core.pipeline import PipelineConfig
    from omni_core.platforms import Platform, PlatformEntry
    from omni_core.runner import RunnerEntry
    from omni_core.stage import ResolvedStage
    from omni_core.tiny import TinyModelEntry

hookspec = pluggy.HookspecMarker("omni")
hookimpl = pluggy.HookimplMarker("omni")


@hookspec
def omni_pipelines() -> Iterable[PipelineConfig]:  # type: ignore[empty-body]
    """Offer pipelines.

    Called once per process, when a model is resolved or pipelines are listed. Two distributions that offer one key are an
    error that names both.
    """


@hookspec(firstresult=True)
def omni_resolve_pipeline(model: ModelInfo) -> str | None:
    """Choose the pipeline key of a checkpoint.

    Called once per model in the main process, before the registry's own rules. Return None to leave the choice to others.
    """


@hookspec
def omni_architectures() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Map architecture names to targets of model classes.

    Called in the main process at resolution, and in each process before vLLM loads a model.
    """


@hookspec
def omni_hf_configs() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Map values of `model_type` that transformers does not know to targets of configuration classes.

    Called in each engine process before a checkpoint's configuration is read.
    """


@hookspec
def omni_deploy_dirs() -> Iterable[Traversable]:  # type: ignore[empty-body]
    """Offer folders with bundled deploy files.

    Called in the main process when a deploy file is looked up by name.
    """


@hookspec
def omni_connectors() -> Iterable[ConnectorEntry]:  # type: ignore[empty-body]
    """Offer connectors.

    Called in the main process at resolution.
    """


@hookspec(firstresult=True)
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Choose what runs a stage.

    Called once per stage in the main process, after the deploy configuration is resolved. Return None to leave the choice to
    others; core's own implementation comes last.
    """


@hookspec(firstresult=True)
def omni_model_capabilities(model_class: type) -> ModelCapabilities | None:
    """Tell what a model class can do.

    Called once at load, in the engine's process. Core's own implementation reads the class's declarations and comes last.
    """


@hookspec
def omni_platforms() -> Iterable[PlatformEntry]:  # type: ignore[empty-body]
    """Offer platforms.

    Called once per process in the main process. Two platforms that detect themselves are an error that names both.
    """


@hookspec
def omni_platform_overrides(platform: Platform, pipeline: PipelineConfig) -> Mapping[str, Any] | None:
    """Offer a fragment of deploy configuration for a platform.

    Called once in the main process at resolution; the fragment goes between the `platforms:` sections of the YAML and the
    flags. None means nothing to change.
    """


@hookspec
def omni_commands() -> Iterable[CommandEntry]:  # type: ignore[empty-body]
    """Offer commands of the `omni` program.

    Called in the main process when the parser is built.
    """


@hookspec
def omni_config_resolved(stages: tuple[ResolvedStage, ...]) -> None:
    """Check a resolved configuration; raise ConfigError to refuse it.

    Called in the main process after the merge and before any process starts: the place for checks that a model owns.
    """


@hookspec
def omni_tiny_models() -> Iterable[TinyModelEntry]:  # type: ignore[empty-body]
    """Offer tiny checkpoints with random weights, for `omni tiny`.

    Called in the main process by that command.
    """
