"""A request that is fed while it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

from omni_core.engine.feed import Feed
from omni_core.payload import Payload
from omni_core.request import OmniOutput, OmniRequest

if TYPE_CHECKING:
    from omni_core.engine.orchestrator import Orchestrator


class StreamingRequest:
    """One request: `push` what comes, and take what `outputs` gives. `AsyncOmni.open` makes it.

    Args:
        orchestrator: What runs it.
        request: What it begins with.
    """

    def __init__(self, orchestrator: Orchestrator, request: OmniRequest) -> None:
        self.request = request
        self._orchestrator = orchestrator
        self._feed = Feed(request.timeout_s)
        self._outputs = orchestrator.submit(request, self._feed)

    async def push(self, payload: Payload, final: bool = False) -> None:
        """Give the entry stage its next payload; wait while too many are under way, and until `outputs` has begun.

        Raises:
            NotFoundError: The request has ended; its outputs tell why.
            RequestError: The payload is too long, or the last one was sent before.
            DeadlineError: There was no room until the request's deadline, or `outputs` did not begin for as long.
        """
        await self._feed.push(payload, final=final)

    def outputs(self) -> AsyncIterator[OmniOutput]:
        """Return its outputs, in order; the last has `finished`. Raises what `AsyncOmni.generate` raises."""
        return self._outputs

    async def close(self) -> None:
        """Abort it in every stage; whoever waits for its outputs gets NotFoundError. May be called twice."""
        self._feed.close()
        self._orchestrator.abort(self.request.request_id, self._feed)
        outputs = cast("Any", self._outputs)
        if not outputs.ag_running:
            await outputs.aclose()
