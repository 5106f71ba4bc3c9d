"""When requests are sent, and where to."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_server.bench.plan import Bounds
from omni_server.bench.schedule import poisson_arrivals, server_order

seeds = st.integers(0, 10**6)


@given(seeds, st.floats(0.1, 1000), st.integers(1, 50))
def test_arrivals_depend_on_the_seed_alone_and_rise(seed: int, rate: float, requests: int) -> None:
    one, two = (poisson_arrivals(rate, Bounds(requests), 1, seed) for _ in range(2))

    assert one == two
    assert len(one) == requests
    assert one[0] > 0
    assert all(earlier < later for earlier, later in pairwise(one))


@given(seeds, st.integers(1, 30), st.integers(1, 30))
def test_a_longer_level_begins_like_a_shorter_one(seed: int, requests: int, more: int) -> None:
    short = poisson_arrivals(5.0, Bounds(requests), 1, seed)
    long = poisson_arrivals(5.0, Bounds(requests + more), 1, seed)

    assert long[:requests] == short


@given(seeds, st.floats(0.5, 20))
def test_the_duration_cuts_arrivals_off(seed: int, duration: float) -> None:
    unbounded = poisson_arrivals(5.0, Bounds(requests=500), 1, seed)

    assert poisson_arrivals(5.0, Bounds(500, duration), 1, seed) == [time for time in unbounded if time < duration]


def test_two_servers_share_the_rate_and_have_twice_the_requests() -> None:
    alone, shared = (poisson_arrivals(4.0, Bounds(2000), servers, 1) for servers in (1, 2))

    assert (len(alone), len(shared)) == (2000, 4000)
    assert shared[:2000] == alone


def test_gaps_are_exponential() -> None:
    gaps = np.diff(poisson_arrivals(8.0, Bounds(20_000), 1, 11))

    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 8, rel=0.03)
    assert (gaps > 1 / 8).mean() == pytest.approx(np.exp(-1), abs=0.02)


@given(seeds, st.integers(1, 3))
def test_each_block_has_every_server_once(seed: int, servers: int) -> None:
    slots = list(islice(server_order(servers, seed), 20 * servers))

    for block in range(20):
        own = slots[block * servers : (block + 1) * servers]
        assert [number for number, _ in own] == [block] * servers
        assert sorted(server for _, server in own) == list(range(servers))


def test_neither_server_is_always_first() -> None:
    firsts = [server for _, server in islice(server_order(2, 0), 400)][::2]

    assert 70 < sum(firsts) < 130
    assert firsts[:20] != firsts[20:40]
