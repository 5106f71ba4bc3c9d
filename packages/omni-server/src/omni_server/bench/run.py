"""A whole run: warm-up, then one level after another. What was measured stays when it is interrupted."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import httpx

from omni_core.errors import ServiceError
from omni_server.bench.endpoint import Endpoint
from omni_server.bench.exchange import open_client
from omni_server.bench.level import Level
from omni_server.bench.plan import BenchPlan, Bounds, Load

logger = logging.getLogger(__name__)

WARMUP_CLIENTS = 4
"""Clients of the warm-up where the first level is an open loop."""
_HINTS = {
    "connect": "is the server running, and is the URL right?",
    "timeout": "raise --timeout, or look at the server's log",
    "status 400": "--body sets fields of the request",
    "status 401": "--api-key KEY sends a key",
    "status 404": "the URL is the server's, without a path: http://HOST:PORT",
}


class BenchRun:
    """Measure what a plan asks for.

    Args:
        plan: What to do.
        endpoint: What is asked for.
    """

    def __init__(self, plan: BenchPlan, endpoint: Endpoint) -> None:
        self.plan = plan
        self.endpoint = endpoint
        self.levels: list[Level] = []
        """The levels that have begun."""

    async def measure(self) -> None:
        """Warm the servers up and run every level.

        Raises:
            ServiceError: A server does not answer the warm-up as it should.
        """
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(open_client(url, self.plan.headers)) for url in self.plan.urls]
            for url, client in zip(self.plan.urls, clients, strict=True):
                await self._warm_up(url, client)
            for number, load in enumerate(self.plan.loads):
                level = Level(self.plan, load, self.endpoint, self.plan.seed + number)
                self.levels.append(level)
                logger.info("level %d of %d: %s", number + 1, len(self.plan.loads), load.label)
                await level.run(clients)

    async def _warm_up(self, url: str, client: httpx.AsyncClient) -> None:
        """Send requests that are not measured: the first alone, since its failure says what is wrong, the rest together."""
        left = self.plan.warmup
        first = self.plan.loads[0]
        clients = int(first.value) if first.kind == "closed" else WARMUP_CLIENTS
        for requests, at_once in ((min(left, 1), 1), (left - 1, clients)):
            if requests > 0:
                plan = replace(self.plan, urls=(url,), bounds=Bounds(requests))
                level = Level(plan, Load("closed", min(at_once, requests)), self.endpoint, self.plan.seed)
                await level.run([client])
                _refuse_failure(level, f"warm-up of {url}")

    def require_success(self) -> None:
        """Refuse a run in which a server answered nothing.

        Raises:
            ServiceError: A server was sent requests and none succeeded.
        """
        outcomes = [outcome for level in self.levels for outcome in level.outcomes()]
        for server, url in enumerate(self.plan.urls):
            digests = [outcome.digest for outcome in outcomes if outcome.server == server]
            if digests and all(digest.error is not None for digest in digests):
                raise _failure(digests[0].error, digests[0].detail, url, f"none of {len(digests)} requests succeeded")


def _refuse_failure(level: Level, where: str) -> None:
    for outcome in level.outcomes():
        if outcome.digest.error is not None:
            raise _failure(outcome.digest.error, outcome.digest.detail, where, "")


def _failure(kind: str | None, detail: str, where: str, begin: str) -> ServiceError:
    text = ": ".join(filter(None, (begin, str(kind), " ".join(detail.split()))))
    return ServiceError(text, where=where, hint=_HINTS.get(str(kind), ""))
