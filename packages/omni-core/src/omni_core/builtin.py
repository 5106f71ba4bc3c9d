"""Core's own plugin: its commands, platforms, stage runners, and how model classes declare what they can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omni_core.commands import CommandEntry
from omni_core.hookspecs import hookimpl
from omni_core.pipeline import ExecutionType
from omni_core.platforms import PlatformEntry
from omni_core.runner import RunnerEntry

if TYPE_CHECKING:
    from omni_core.capabilities import ModelCapabilities
    from omni_core.platforms import Platform
    from omni_core.stage import ResolvedStage

AR = RunnerEntry(
    "ar", "omni_core.engine.ar.runner:ArRunner", preload=("omni_core.engine.ar.preload",), requires=("torch", "vllm")
)
LIGHT = RunnerEntry("light", "omni_core.engine.light_runner:LightRunner", preload=("torch",))


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer the commands that need no other package."""
    return (
        CommandEntry("config", "show, explain, check, compare and freeze a deployment", "omni_core.commands.config:command"),
        CommandEntry("doctor", "look for faults of this installation", "omni_core.commands.doctor:command"),
        CommandEntry("env", "list the environment variables that Omni reads", "omni_core.commands.env:command"),
        CommandEntry("pipelines", "list the pipelines that can be served", "omni_core.commands.pipelines:command"),
        CommandEntry("plugins", "list the plugins and what became of each", "omni_core.commands.plugins:command"),
        CommandEntry("tiny", "build a tiny checkpoint with random weights", "omni_core.commands.tiny:command"),
    )


@hookimpl
def omni_platforms() -> Iterable[PlatformEntry]:
    """Offer the CPU, used where nothing else is detected, and CUDA."""
    return (
        PlatformEntry("cpu", None, "omni_core.platforms:CPU"),
        PlatformEntry("cuda", "omni_core.platforms:detect_cuda", "omni_core.platforms:CUDA"),
    )


@hookimpl(trylast=True)
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Run autoregressive stages on vLLM, and stages with a model class of their own in the light engine."""
    if stage.topology.execution_type is ExecutionType.LLM_AR:
        return AR
    return LIGHT if stage.architecture_target is not None else None


@hookimpl(trylast=True)
def omni_model_capabilities(model_class: type) -> ModelCapabilities | None:
    """Read what the class itself declares."""
    from omni_core.capabilities import read_capabilities

    return read_capabilities(model_class)
