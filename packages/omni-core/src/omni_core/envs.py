"""Every `OMNI_` environment variable that core reads: its name, its default and what it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from omni_core.suggest import did_you_mean


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    summary: str
    default: str = ""
    internal: bool = False
    """Whether Omni's processes set it for each other, so that listings leave it out."""


VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable("OMNI_PLUGINS", "Distributions whose plugins may load, separated by commas; empty means core alone."),
        Variable("OMNI_DISABLE_PLUGINS", "Distributions whose plugins do not load, separated by commas."),
        Variable("OMNI_PLATFORM", "Platform to use instead of the detected one: cpu, cuda, or a plugin's."),
        Variable("OMNI_TRACE_HOOKS", "1 logs each hook call with its plugin and milliseconds.", "0"),
        Variable("OMNI_LOG_LEVEL", "Level of Omni's log: DEBUG, INFO, WARNING or ERROR.", "INFO"),
        Variable("OMNI_LOG_FORMAT", "Form of Omni's log: text or json.", "text"),
        Variable("OMNI_TEST_CUDA_PATHS", "1 lets what is for CUDA alone run anywhere; for tests.", "0", internal=True),
        Variable("OMNI_TOKEN", "Secret that the commands of a pipeline on several hosts share; see --omni-token."),
        Variable("OMNI_API_KEY", "Key of the server that `omni talk` speaks to."),
        Variable("OMNI_PROFILE_DIR", "Folder for the traces of the profiler; empty means that nothing can be profiled."),
        Variable("OMNI_PRELOAD", "Modules that the fork server imports.", internal=True),
        Variable("OMNI_PRELOAD_SERVER", "Process that the fork server watches.", internal=True),
        Variable("OMNI_RUN_DIR", "Folder of this server run.", internal=True),
        Variable("OMNI_STAGE_HEARTBEAT_TIMEOUT", "Seconds of an engine's silence that mean its death.", internal=True),
        Variable("OMNI_STAGE_INIT_TIMEOUT", "Seconds that a stage may take to start.", internal=True),
        Variable("OMNI_STAGE_LOG", "Name of the stage in log lines.", internal=True),
        Variable("OMNI_WATCH_PIDS", "Processes whose end a child watches.", internal=True),
    )
}

HONOURED = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "VLLM_PLUGINS",
    "VLLM_CACHE_ROOT",
    "VLLM_LOGGING_LEVEL",
)
"""Variables of others that change what Omni does; `omni env` lists them too."""

_SECRETS = frozenset({"HF_TOKEN", "OMNI_API_KEY", "OMNI_TOKEN"})


def read(name: str) -> str:
    """Return the value of an OMNI_ variable, or its default. The name is one of `VARIABLES`."""
    return os.environ.get(name, VARIABLES[name].default)


def is_on(name: str) -> bool:
    """Return whether an OMNI_ switch is set to 1, true or yes."""
    return read(name).lower() in {"1", "true", "yes"}


def shown(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the set value of a variable for a listing, secrets hidden; None where it is not set."""
    value = (os.environ if environ is None else environ).get(name)
    return "(set, hidden)" if value and name in _SECRETS else value


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return each set `OMNI_` variable that nothing reads, with a suggestion or an empty string."""
    names = sorted(name for name in (os.environ if environ is None else environ) if name.startswith("OMNI_"))
    return [(name, did_you_mean(name, VARIABLES)) for name in names if name not in VARIABLES]
