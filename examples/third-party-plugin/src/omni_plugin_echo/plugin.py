"""What this distribution offers to Omni. Read in every process, so it imports nothing heavy: records name their rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.commands import CommandEntry
from omni_core.connector import ConnectorEntry
from omni_core.hookspecs import hookimpl
from omni_core.runner import RunnerEntry
from omni_core.tiny import TinyModelEntry
from omni_plugin_echo.pipeline import ECHO

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.pipeline import PipelineConfig
    from omni_core.platforms import Platform
    from omni_core.stage import ResolvedStage


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer the pipeline; its key is the `model_type` of the checkpoints that it serves."""
    return [ECHO]


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map the architecture of the second stage to its class, which the light runner loads."""
    return {"EchoTone": "omni_plugin_echo.tone:EchoTone"}


@hookimpl
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Run the first stage with a runner of our own; leave every other stage to others."""
    if stage.pipeline == ECHO.model_type and stage.stage_id == 0:
        return RunnerEntry("echo", "omni_plugin_echo.speller:Speller")
    return None


@hookimpl
def omni_deploy_dirs() -> Iterable[Traversable]:
    """Offer the folder with `echo.yaml`."""
    return [files("omni_plugin_echo") / "deploy"]


@hookimpl
def omni_connectors() -> Iterable[ConnectorEntry]:
    """Offer the connector that `echo.yaml` uses."""
    return [
        ConnectorEntry(
            name="EchoFilesConnector",
            target="omni_plugin_echo.connector:EchoFilesConnector",
            options="omni_plugin_echo.options:EchoFilesOptions",
            description="Files in the run directory, one for each payload",
        )
    ]


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer `omni echo-info`."""
    return [CommandEntry("echo-info", "say what an echo checkpoint accepts", "omni_plugin_echo.command:command")]


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer `omni tiny echo DIR`."""
    return [TinyModelEntry("echo", "one tone for each character", "omni_plugin_echo.tiny:build")]
