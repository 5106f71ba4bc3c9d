"""One request on the wire: what is kept of it while it runs is bytes and times, nothing is decoded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from omni_server.bench.plan import Job

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Bytes of one answer; a longer one is given up."""
KEEPALIVE_S = 4.0
"""Seconds that an idle connection is kept: less than servers keep it, so that none is used while its server closes it."""


@dataclass
class Exchange:
    """One request and what came back. Times are of `time.perf_counter`."""

    job: Job
    due: float
    """When the request was to be sent: what a client feels is counted from here."""
    sent: float = 0.0
    status: int | None = None
    """HTTP status; None if no answer began."""
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the body as they were received."""
    end: float = 0.0
    failure: tuple[str, str] | None = None
    """Kind and detail, if the exchange itself failed."""

    @property
    def size(self) -> int:
        """Bytes of the body that are held."""
        return sum(len(data) for _, data in self.pieces)


def open_client(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """Return a client of one server with as many connections as there are requests, and nothing in between."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
    asked = {"Accept-Encoding": "identity", "Content-Type": "application/json", **headers}
    return httpx.AsyncClient(base_url=url, headers=asked, limits=limits, timeout=None, trust_env=False)


async def exchange(client: httpx.AsyncClient, path: str, job: Job, due: float | None, timeout_s: float) -> Exchange:
    """Send one request and receive its answer.

    Args:
        client: Client of the job's server.
        path: Path to post to.
        job: The request.
        due: When it was to be sent; None counts from when it is.
        timeout_s: Seconds until it is given up.
    """
    content = json.dumps(job.body).encode()
    sent = time.perf_counter()
    record = Exchange(job, sent if due is None else due, sent)
    try:
        async with asyncio.timeout(timeout_s):
            await _receive(client, path, content, record)
    except TimeoutError:
        record.failure = "timeout", f"no end after {timeout_s:g} s"
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        record.failure = "connect", str(error) or type(error).__name__
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        record.failure = "cut off", str(error) or type(error).__name__
    except httpx.HTTPError as error:
        record.failure = "transport", f"{type(error).__name__}: {error}"
    record.end = time.perf_counter()
    return record


async def _receive(client: httpx.AsyncClient, path: str, content: bytes, record: Exchange) -> None:
    pieces, size, now = record.pieces, 0, time.perf_counter
    async with client.stream("POST", path, content=content) as answer:
        record.status = answer.status_code
        record.headers = answer.headers
        async for data in answer.aiter_raw():
            pieces.append((now(), data))
            size += len(data)
            if size > MAX_BODY_BYTES:
                record.failure = "too long", f"more than {MAX_BODY_BYTES} bytes"
                return
