"""The way from a session to the pipeline: requests that stay on the session's replica group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from omni_core.deploy.duplex import DuplexPlan
from omni_core.observe.telemetry import Telemetry
from omni_core.request import OmniOutput
from omni_duplex.model import StreamingRequest


class PipelineEngine(Protocol):
    """What a port needs of an engine; `omni_core.client.AsyncOmni` has it."""

    telemetry: Telemetry

    def generate(self, prompt: Any, **options: Any) -> AsyncIterator[OmniOutput]:
        """Run one request."""
        ...

    def open(self, prompt: Any, **options: Any) -> StreamingRequest:
        """Begin a request whose input arrives while it runs."""
        ...

    def watch_deaths(self, told: Callable[[int, int, str], None]) -> None:
        """Call a function with the stage, the replica and the reason whenever a replica is gone."""
        ...

    def watch_returns(self, told: Callable[[], None]) -> None:
        """Call a function whenever a replica that was gone is ready again."""
        ...

    def health(self) -> Mapping[str, Any]:
        """Return the `stages`: for each replica its `stage_id`, `replica` and `state`."""
        ...


class PipelinePort:
    """One replica group of an engine.

    Args:
        engine: The engine.
        group: Number of the group.
        replicas: Replica of each stage; None under the legacy policy, which chooses for each request.
    """

    def __init__(self, engine: PipelineEngine, group: int, replicas: Mapping[int, int] | None) -> None:
        self.group = group
        self._engine = engine
        self._placed: dict[str, Any] = {} if replicas is None else {"replicas": dict(replicas)}

    def generate(self, inputs: Any, **options: Any) -> AsyncIterator[OmniOutput]:
        """Run one request on the group."""
        return self._engine.generate(inputs, **{**options, **self._placed})

    def open(self, inputs: Any, **options: Any) -> StreamingRequest:
        """Begin a request on the group whose input arrives while it runs."""
        return self._engine.open(inputs, **{**options, **self._placed})


def ports(engine: PipelineEngine, plan: DuplexPlan) -> Callable[[int], PipelinePort]:
    """Return what gives the port of a group, by its number."""
    return lambda group: PipelinePort(engine, group, plan.groups[group] if plan.groups else None)
