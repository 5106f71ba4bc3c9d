"""Core of Omni: pipelines, deploy configuration, plugins, and the engine that runs a model's stages."""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_core.client import AsyncOmni, Omni
    from omni_core.hookspecs import hookimpl
    from omni_core.pipeline import ExecutionType, OutputType, PipelineConfig, StagePipelineConfig
    from omni_core.request import OmniOutput
    from omni_core.speech import ReferenceAudio, SpeechPrompt

__version__ = _version("omni-core")

_HOMES = {
    "AsyncOmni": "omni_core.client",
    "ExecutionType": "omni_core.pipeline",
    "Omni": "omni_core.client",
    "OmniOutput": "omni_core.request",
    "OutputType": "omni_core.pipeline",
    "PipelineConfig": "omni_core.pipeline",
    "ReferenceAudio": "omni_core.speech",
    "SpeechPrompt": "omni_core.speech",
    "StagePipelineConfig": "omni_core.pipeline",
    "hookimpl": "omni_core.hookspecs",
}

__all__ = [
    "AsyncOmni",
    "ExecutionType",
    "Omni",
    "OmniOutput",
    "OutputType",
    "PipelineConfig",
    "ReferenceAudio",
    "SpeechPrompt",
    "StagePipelineConfig",
    "__version__",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'omni_core' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
