"""The two ends of an edge in a stage's process: the outlet that hands on what a runner makes, and the inlet that fetches it.

Each end has its own connector and one worker thread for it. An outlet holds chunks back while a request has `window` of them
under way that the consumer has not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from omni_core.connector import Connector, ConnectorEdge, Role
from omni_core.engine.messages import Chunk
from omni_core.errors import DeadlineError, OmniError, ServiceError
from omni_core.observe.registry import Registry
from omni_core.observe.stage import note_in_flight, note_transfer, payload_bytes, timed_transfer
from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_core.target import load_target

DEFAULT_WINDOW = 8
TRANSFER_TIMEOUT_S = 30.0
"""Longest wait for one put or get."""
SMALL_BYTES = 2**18
"""Payloads up to this size are tried without a change of threads: to copy so much takes less time than that."""

R = TypeVar("R")
Function = Callable[[Handoff, StageOutput], "Payload | None"]


@dataclass(frozen=True)
class Place:
    """Where a stage's process runs, as connectors need to know it."""

    replica: int
    run_dir: str
    run_id: str
    address: str = ""


class Window:
    """How many un-acknowledged pieces one request may have under way to one receiver."""

    def __init__(self, size: int) -> None:
        self._room = asyncio.Semaphore(size)
        self.sent = 0
        self.acknowledged = 0

    async def enter(self, deadline: float, what: str) -> int:
        """Wait for room until `deadline` (loop time) and return the next sequence number.

        Raises:
            DeadlineError: There was no room by then.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        except TimeoutError:
            raise DeadlineError(f"{what} was not taken by the request's deadline") from None
        self.sent += 1
        return self.sent - 1

    def acknowledge(self) -> None:
        """Make room for one more."""
        if self.acknowledged < self.sent:
            self.acknowledged += 1
            self._room.release()

    def give_back(self) -> None:
        """Take back the number that `enter` gave last: nothing is sent with it."""
        self.sent -= 1
        self._room.release()

    def let_one_in(self) -> None:
        """Let the first one that waits go on without room, to see that it waits in vain."""
        self._room.release()


class _End:
    """A connector and its thread."""

    def __init__(self, edge: ResolvedEdge, role: Role, place: Place, metrics: Registry | None = None) -> None:
        self.edge = edge
        self._metrics = metrics
        self._role = role
        self._place = place
        self._connector: Connector | None = None
        self._thread = ThreadPoolExecutor(1, f"omni-{role}-{edge.from_stage}-{edge.to_stage}")

    async def _call(self, function: Callable[[Connector], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(self._connected()))

    def _connected(self) -> Connector:
        if self._connector is None:
            edge = self.edge
            cls = cast("type[Connector]", load_target(edge.target, where=f"connectors.{edge.connector}"))
            place = self._place
            self._connector = cls(
                ConnectorEdge(
                    edge.connector,
                    edge.from_stage,
                    edge.to_stage,
                    self._role,
                    place.replica,
                    place.run_dir,
                    place.run_id,
                    place.address,
                ),
                edge.options,
            )
        return self._connector

    @property
    def in_flight(self) -> int:
        """Payloads that this end's connector holds; noted among the numbers, too."""
        count = int(self._connector.health().get("in_flight", 0)) if self._connector is not None else 0
        sends = self._role is Role.SENDER
        note_in_flight(self._metrics, count, self.edge.to_stage if sends else self.edge.from_stage, "put" if sends else "get")
        return count

    async def connect(self) -> None:
        """Build the connector now."""
        await self._call(lambda connector: None)

    def forget(self, request_id: str) -> None:
        """Free what is left of a request: at once, since a put may wait for just that room, and behind the calls in line.

        Neither is waited for: a connector may have to ask a store, and the loop has other requests and heartbeats.
        """
        if self._connector is not None:
            asyncio.get_running_loop().run_in_executor(None, self._connector.cleanup, request_id)
            self._thread.submit(self._connector.cleanup, request_id)

    async def close(self) -> None:
        """Close the connector, which ends a call that waits in it."""
        if self._connector is not None:
            await asyncio.to_thread(self._connector.close)
        self._thread.shutdown(wait=False, cancel_futures=True)


class Inlet(_End):
    """The receiving end."""

    def __init__(self, edge: ResolvedEdge, place: Place, metrics: Registry | None = None) -> None:
        super().__init__(edge, Role.RECEIVER, place, metrics)

    async def fetch(self, handle: bytes, deadline: float) -> dict[str, Any]:
        """Return the payload of a handle."""
        timeout_s = _remaining(deadline)
        with timed_transfer(self._metrics, self.edge.from_stage, "get"):
            payload = self._connector.try_get(handle) if self._connector is not None else None
            if payload is None:
                payload = await self._call(lambda connector: connector.get(handle, timeout_s))
        note_transfer(self._metrics, payload, self.edge.from_stage, "get")
        return payload


class Outlet(_End):
    """The sending end, with the pipeline's hand-over function."""

    def __init__(self, stage: ResolvedStage, edge: ResolvedEdge, place: Place, metrics: Registry | None = None) -> None:
        super().__init__(edge, Role.SENDER, place, metrics)
        topology = stage.topology
        chunked = topology.async_chunk_process_next_stage_input_func
        self.chunked = edge.async_chunk and chunked is not None
        target = chunked if self.chunked else topology.custom_process_next_stage_input_func
        where = f"stage {stage.name}"
        self.function = cast("Function", load_target(target, where=where)) if target else plain_payload
        self.window = int(edge.stream.get("max_inflight", DEFAULT_WINDOW))
        self.where = f"{where}, hand-over to stage {edge.to_stage}"

    async def put(self, request_id: str, sequence: int, payload: Payload, deadline: float) -> bytes:
        """Put a payload and return its handle."""
        timeout_s = _remaining(deadline)
        is_small = payload_bytes(payload) <= SMALL_BYTES
        with timed_transfer(self._metrics, self.edge.to_stage, "put"):
            handle = self._connector.try_put(request_id, sequence, payload) if self._connector and is_small else None
            if handle is None:
                handle = await self._call(lambda connector: connector.put(request_id, sequence, payload, timeout_s))
        note_transfer(self._metrics, payload, self.edge.to_stage, "put")
        return handle


@dataclass
class HandOver:
    """One request on one outlet."""

    outlet: Outlet
    handoff: Handoff
    deadline: float
    window: Window
    _outputs: list[StageOutput] = field(default_factory=list)
    _begun: bool = False

    @classmethod
    def begin(cls, outlet: Outlet, request_id: str, deadline: float) -> HandOver:
        """Begin handing a request on."""
        return cls(outlet, Handoff(request_id, {}, outlet.edge.stream), deadline, Window(outlet.window))

    async def give(self, output: StageOutput) -> Chunk | None:
        """Hand an output on; return the message for the consumer if a chunk went out.

        Raises:
            DeadlineError: The consumer took nothing until the request's deadline.
            OmniError: What the hand-over function or the connector raised.
        """
        if not self._begun:
            self._begun = True
            self.handoff.inputs = output.handoff
        payload = await self._make(output)
        if payload is None and not output.finished:
            return None
        to_stage = self.outlet.edge.to_stage
        sequence = await self.window.enter(self.deadline, f"a chunk for stage {to_stage}")
        handle = await self.outlet.put(self.handoff.request_id, sequence, payload or {}, self.deadline)
        return Chunk(
            self.handoff.request_id,
            to_stage,
            sequence,
            handle,
            output.finished,
            output.finish_reason,
            dict(output.metrics) if output.finished else {},
        )

    async def _make(self, output: StageOutput) -> Payload | None:
        if self.outlet.chunked:
            # On the loop: chunk functions are a few array operations for each token, less than a change of threads.
            return self._call(output)
        self._outputs.append(output)
        if not output.finished:
            return None
        whole, self._outputs = join_outputs(self._outputs), []
        return await asyncio.to_thread(self._call, whole)

    def _call(self, output: StageOutput) -> Payload | None:
        try:
            return self.outlet.function(self.handoff, output)
        except OmniError:
            raise
        except Exception as error:  # a pipeline's code may raise anything; it costs this request alone
            raise ServiceError(f"{type(error).__name__}: {error}", where=self.outlet.where) from error


def plain_payload(handoff: Handoff, output: StageOutput) -> Payload:
    """Hand on what a stage made, under the names it has; for pipelines without a hand-over function."""
    payload = dict(output.tensors)
    if output.token_ids:
        payload["token_ids"] = np.asarray(output.token_ids, np.int64)
    if output.text:
        payload["text"] = output.text
    return payload


def join_outputs(outputs: list[StageOutput]) -> StageOutput:
    """Return a request's outputs as one: tensors joined along dimension 0 (EO-12), the end's facts from the last."""
    last = outputs[-1]
    names = dict.fromkeys(name for output in outputs for name in output.tensors)
    return StageOutput(
        tensors={name: _join([o.tensors[name] for o in outputs if name in o.tensors]) for name in names},
        token_ids=[token for output in outputs for token in output.token_ids],
        text="".join(output.text for output in outputs),
        finished=last.finished,
        finish_reason=last.finish_reason,
        metrics=last.metrics,
        handoff=outputs[0].handoff,
    )


def _join(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    import torch

    return torch.cat([torch.as_tensor(part) for part in parts])


def _remaining(deadline: float) -> float:
    return max(0.0, min(TRANSFER_TIMEOUT_S, deadline - asyncio.get_running_loop().time()))
