"""When requests are sent, and to which server: decided before the run, from a seed, whatever the servers do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from omni_server.bench.plan import Bounds

_ARRIVALS, _ORDER = 0, 1
"""Streams of random numbers: one must not depend on how much the other was used."""


def poisson_arrivals(rate: float, bounds: Bounds, servers: int, seed: int) -> list[float]:
    """Return the seconds, from the level's begin, at which requests are sent.

    Args:
        rate: Requests a second on average, of all servers together.
        bounds: End of the level.
        servers: How many servers share the level.
        seed: The same seed gives the same times, and a longer level begins with the times of a shorter one.
    """
    random = np.random.default_rng([_ARRIVALS, seed])
    most = bounds.slots(servers)
    end = float("inf") if bounds.duration_s is None else bounds.duration_s
    arrivals: list[float] = []
    now = 0.0
    while len(arrivals) < most:
        now += float(random.exponential(1.0 / rate))
        if now >= end:
            break
        arrivals.append(now)
    return arrivals


def server_order(servers: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (block, server) without end: each block has every server once, in random order.

    So both servers see the same prompts and the same moments of the machine, and neither always comes first.
    """
    random = np.random.default_rng([_ORDER, seed])
    block = 0
    while True:
        for server in random.permutation(servers):
            yield block, int(server)
        block += 1
