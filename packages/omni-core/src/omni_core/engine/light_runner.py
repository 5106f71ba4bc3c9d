"""The light runner: models that turn chunks into chunks, batched across requests in one worker thread of a stage's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

from omni_core.engine.light_control import LightControl
from omni_core.engine.light_dispatch import DispatchGate
from omni_core.engine.profiling import METHODS, StageProfiler, TorchProfiler, profile_folder
from omni_core.errors import OmniError, RequestError, ServiceError, StageDeadError, StageStartError
from omni_core.observe.stage import note_step
from omni_core.payload import Payload
from omni_core.runner import LightChunk, LightModel, StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedStage
from omni_core.target import load_target

logger = logging.getLogger(__name__)

MAX_UNREAD_OUTPUTS = 8
"""A request with so many outputs that nobody has taken is not computed further."""

Result = Mapping[str, Any] | OmniError


@dataclass(eq=False)
class _Waiting:
    """One chunk in line."""

    payload: Payload
    final: bool
    done: asyncio.Future[None]
    since: float
    """When it came, by the loop's clock."""


@dataclass(eq=False)
class _Request:
    """One request. The loop owns its lines; the worker thread owns its state."""

    request_id: str
    sampling: Mapping[str, Any]
    waiting: deque[_Waiting] = field(default_factory=deque)
    outputs: asyncio.Queue[StageOutput | OmniError | None] = field(default_factory=asyncio.Queue)
    is_new: bool = True
    """Whether no chunk of it has come."""
    begun: bool = False
    state: Any = None


class LightRunner(StageRunner):
    """Run a `LightModel`: each step computes the next chunk of every request that has one and whose group fits."""

    def __init__(self, stage: ResolvedStage, replica: int = 0) -> None:
        super().__init__(stage, replica)
        self._requests: dict[str, _Request] = {}
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, f"omni-light-{stage.stage_id}")
        self._driver: asyncio.Task[None] | None = None
        self._model: LightModel
        self._control = LightControl(self)
        torch_profiler = TorchProfiler()
        self._profiler = StageProfiler(
            stage,
            profile_folder(stage, replica),
            lambda: self.in_worker(torch_profiler.begin),
            lambda folder: self.in_worker(lambda: torch_profiler.end(folder)),
        )
        self._where = f"stage {stage.name}"
        self._max_batch = sys.maxsize
        self._gate = DispatchGate()
        self._has_newcomer = False

    async def start(self) -> Mapping[str, Any]:
        """Load the model; return the sample rate and channels of models that make audio."""
        self._model = await self.in_worker(self._load)
        self._driver = asyncio.create_task(self._drive())
        model = self._model
        given = self.stage.engine_args
        bound = model.max_batch or given.get("decode_batch_max_size") or given.get("max_num_seqs")
        self._max_batch = int(bound) if bound else sys.maxsize
        self._gate = DispatchGate.of(model, self.stage, self._max_batch)
        return {"sample_rate": model.sample_rate, "channels": model.channels} if model.sample_rate else {}

    def _load(self) -> LightModel:
        if self.stage.architecture_target is None:
            raise StageStartError(f"no plugin offers the architecture {self.stage.architecture!r}", where=self._where)
        model_class = cast("type[LightModel]", load_target(self.stage.architecture_target, where=self._where))
        return model_class.load(self.stage)

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield a request's outputs."""
        found = _Request(request.request_id, request.sampling)
        self._requests[request.request_id] = found
        if request.inputs or not request.streaming:
            self._enqueue(found, request.inputs, not request.streaming)
        try:
            while (output := await found.outputs.get()) is not None:
                self._wake.set()
                if isinstance(output, OmniError):
                    raise output
                yield output
                if output.finished:
                    return
        finally:
            self._end(found)

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Give a request its next chunk; return when it was computed, or the request has ended."""
        if (found := self._requests.get(request_id)) is not None:
            await self._enqueue(found, payload, final)

    def _enqueue(self, request: _Request, payload: Payload, final: bool) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if request.is_new:
            request.is_new = False
            self._has_newcomer = True
            if (ready := self._model.ready(payload)) is not None:
                request.outputs.put_nowait(StageOutput(tensors=dict(ready)))
        request.waiting.append(_Waiting(payload, final, done, loop.time()))
        self._wake.set()
        return done

    async def abort(self, request_id: str) -> None:
        """End a request and its iterator."""
        if (found := self._requests.get(request_id)) is not None:
            self._end(found)
            found.outputs.put_nowait(None)

    def _end(self, request: _Request) -> None:
        if self._requests.get(request.request_id) is not request:
            return
        del self._requests[request.request_id]
        self._control.note_end()
        for chunk in request.waiting:
            _settle(chunk.done)
        request.waiting.clear()
        # Behind the step that may be computing it now: the thread does one thing after the other.
        self._thread.submit(self._end_state, request)

    async def stop(self) -> None:
        """End every request and the worker thread."""
        for request_id in list(self._requests):
            await self.abort(request_id)
        if self._driver is not None:
            self._driver.cancel()
        await self.in_worker(lambda: None)
        self._thread.shutdown(wait=False)

    def load(self) -> Mapping[str, int]:
        """Return the number of requests and of chunks in line."""
        return {"held": len(self._requests), "waiting": sum(len(request.waiting) for request in self._requests.values())}

    # What operators ask for

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer an operator's call, see `light_control`."""
        return await (self._profiler.call(method) if method in METHODS else self._control.call(method, arguments))

    @property
    def model(self) -> LightModel:
        """The loaded model."""
        return self._model

    @property
    def has_begun(self) -> bool:
        """Whether a request has a state."""
        return any(request.begun for request in self._requests.values())

    def end_all(self, error: OmniError) -> None:
        """Fail every request."""
        for request in list(self._requests.values()):
            request.outputs.put_nowait(error)
            self._end(request)

    def look(self) -> None:
        """Look for chunks that can be computed."""
        self._wake.set()

    async def check(self) -> None:
        """Raise StageDeadError if the loop that drives the worker has ended, which only a fault in it can bring about."""
        if self._driver is not None and self._driver.done():
            error = None if self._driver.cancelled() else self._driver.exception()
            raise StageDeadError(f"its batch loop ended: {error!r}", where=self._where)

    async def in_worker(self, function: Callable[[], Any]) -> Any:
        """Run a function in the worker thread, behind what it does now."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    # The loop's side of a step

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        delay: float | None = None
        while True:
            await self._woken(delay)
            delay = None
            self._has_newcomer = False
            ready = [request for request in self._requests.values() if _may_compute(request)]
            heads = [(request, request.waiting[0]) for request in ready if self._control.allows(begun=request.begun)]
            if not heads:
                continue
            delay = self._gate.delay(len(heads), min(chunk.since for _, chunk in heads), loop.time()) or None
            if delay is not None:
                continue
            if self._model.firsts_first:
                heads.sort(key=lambda head: head[0].begun)

            def deliver(request: _Request, chunk: _Waiting, result: Result) -> None:
                loop.call_soon_threadsafe(self._deliver, request, chunk, result)

            await self.in_worker(lambda heads=heads, deliver=deliver: self._compute(heads, deliver))  # type: ignore[misc]
            self._wake.set()

    async def _woken(self, timeout_s: float | None) -> None:
        """Wait until there is something to look at, or until the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    def _deliver(self, request: _Request, chunk: _Waiting, result: Result) -> None:
        if self._requests.get(request.request_id) is not request:
            return
        request.waiting.popleft()
        if isinstance(result, OmniError):
            request.outputs.put_nowait(result)
            self._end(request)
        elif result or chunk.final:
            tensors = dict(result)
            text = str(tensors.pop("text", ""))
            request.outputs.put_nowait(StageOutput(tensors=tensors, text=text, finished=chunk.final))
        _settle(chunk.done)

    # The worker thread's side

    def _compute(
        self, heads: Sequence[tuple[_Request, _Waiting]], deliver: Callable[[_Request, _Waiting, Result], None]
    ) -> None:
        """Compute chunks, group by group; stop behind a batch of later chunks when a newcomer has a first one.

        What is left is computed in the next pass, so each pass brings the requests under way a batch further.
        """
        groups: dict[Hashable, list[tuple[_Request, _Waiting, LightChunk]]] = {}
        with _inference():
            newcomers = {request.request_id for request, _ in heads if not request.begun}
            for request, waiting in heads:
                try:
                    if not request.begun:
                        request.state = self._model.begin(request.request_id, request.sampling)
                        request.begun = True
                    chunk = LightChunk(request.request_id, request.state, waiting.payload, waiting.final)
                    groups.setdefault(self._model.group(chunk), []).append((request, waiting, chunk))
                except Exception as error:  # noqa: BLE001 - a model may raise anything; only this request fails
                    deliver(request, waiting, self._error(error))
            for group in groups.values():
                for start in range(0, len(group), self._max_batch):
                    batch = group[start : start + self._max_batch]
                    for (request, waiting, _), result in zip(batch, self._step([c for _, _, c in batch]), strict=True):
                        deliver(request, waiting, result)
                    are_later = not any(request.request_id in newcomers for request, _, _ in batch)
                    if self._model.firsts_first and are_later and self._has_newcomer:
                        return

    def _step(self, chunks: list[LightChunk]) -> list[Result]:
        try:
            began = time.monotonic()
            results = self._model.step(chunks)
            if len(results) != len(chunks):
                raise ServiceError(f"the model answered {len(chunks)} chunks with {len(results)}", where=self._where)
        except Exception as error:  # noqa: BLE001 - a model may raise anything; the requests that caused it fail
            # States are unchanged, so the chunks can be computed one by one, and the others do not pay for one.
            if len(chunks) == 1:
                return [self._error(error)]
            return [result for chunk in chunks for result in self._step([chunk])]
        note_step(self.metrics, time.monotonic() - began, [chunk.payload for chunk in chunks])
        return list(results)

    def _error(self, error: Exception) -> OmniError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, OmniError):
            return ServiceError(error.message, where=error.where or self._where, hint=error.hint)
        wrapped = ServiceError(f"{type(error).__name__}: {error}", where=self._where)
        wrapped.__cause__ = error
        return wrapped

    def _end_state(self, request: _Request) -> None:
        if request.begun:
            request.begun = False
            state, request.state = request.state, None
            try:
                with _inference():
                    self._model.end(state)
            except Exception:  # a model may raise anything; the request has ended and its place is free all the same
                logger.exception("%s: freeing the state of request %s failed", self._where, request.request_id)


def _may_compute(request: _Request) -> bool:
    return bool(request.waiting) and request.outputs.qsize() < MAX_UNREAD_OUTPUTS


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _inference() -> contextlib.AbstractContextManager[Any]:
    # A model that computes with torch has imported it by now; one that does not needs no torch.
    torch = sys.modules.get("torch")
    return torch.inference_mode() if torch is not None else contextlib.nullcontext()
