"""The player that starts with the first packet."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_server.bench.playback import play

packets = st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 2)), min_size=1, max_size=20).map(
    lambda items: list(zip(accumulate(gap for gap, _ in items), (seconds for _, seconds in items), strict=True))
)


def test_packets_in_time_play_without_a_pause() -> None:
    playback = play([(1.0, 0.5), (1.2, 0.5), (1.9, 0.5)])

    assert playback.starts == (1.0, 1.5, 2.0)
    assert (playback.underruns, playback.stalled_s, playback.end) == (0, 0.0, 2.5)


def test_a_late_packet_is_an_underrun() -> None:
    playback = play([(0.0, 0.5), (0.7, 0.5), (1.2, 0.5), (2.0, 0.5)])

    assert playback.starts == pytest.approx((0.0, 0.7, 1.2, 2.0))
    assert playback.underruns == 2
    assert playback.stalled_s == pytest.approx(0.2 + 0.3)


def test_a_packet_that_comes_as_the_last_one_ends_is_in_time() -> None:
    assert play([(0.0, 0.1)] + [(0.1 * index, 0.1) for index in range(1, 50)]).underruns == 0


@given(packets)
def test_no_time_is_lost(items: list[tuple[float, float]]) -> None:
    playback = play(items)

    assert playback.end == pytest.approx(items[0][0] + sum(seconds for _, seconds in items) + playback.stalled_s)
    assert all(start >= arrival for start, (arrival, _) in zip(playback.starts, items, strict=True))
    assert (playback.underruns == 0) == (playback.stalled_s == 0)


@given(packets)
def test_a_start_later_by_the_stalled_time_has_no_underrun(items: list[tuple[float, float]]) -> None:
    stalled = play(items).stalled_s
    later = [
        (items[0][0] + stalled + 1e-6, items[0][1]),
        *((max(time, items[0][0] + stalled + 1e-6), s) for time, s in items[1:]),
    ]

    assert play(later).underruns == 0


@given(packets)
def test_the_stalled_time_is_the_largest_lag_behind_the_first_packet(items: list[tuple[float, float]]) -> None:
    played = [0.0, *accumulate(seconds for _, seconds in items)][:-1]
    lags = [arrival - items[0][0] - before for (arrival, _), before in zip(items, played, strict=True)]

    assert play(items).stalled_s == pytest.approx(max(*lags, 0.0), abs=1e-6)
