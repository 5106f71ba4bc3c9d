"""Percentiles and ratios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_server.bench.statistics import bootstrap_ratio, summarise

times = st.floats(min_value=1e-4, max_value=1e4)


def test_summary_of_known_values() -> None:
    summary = summarise([4.0, 1.0, 3.0, 2.0, 5.0])

    assert summary is not None
    assert (summary.n, summary.mean, summary.min, summary.max) == (5, 3.0, 1.0, 5.0)
    assert summary.p50 == 3.0
    assert summary.p90 == pytest.approx(4.6)  # between the 4th and the 5th: (n - 1) * 0.9 = 3.6
    assert summary.p99 == pytest.approx(4.96)


def test_no_values_have_no_summary() -> None:
    assert summarise([]) is None


@given(st.lists(times, min_size=1), st.randoms())
def test_percentiles_rise_and_do_not_depend_on_the_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    one, two = summarise(values), summarise(shuffled)

    assert one is not None
    assert two is not None
    assert one.min <= one.p50 <= one.p90 <= one.p99 <= one.max
    assert one.min <= one.mean <= one.max
    assert (one.p50, one.p90, one.p99) == (two.p50, two.p90, two.p99)


@given(st.lists(times, min_size=2, max_size=20), st.sampled_from(["mean", "p50", "p90"]))
def test_a_server_that_is_always_twice_as_slow_has_the_ratio_two_without_doubt(values: list[float], statistic: str) -> None:
    ratio = bootstrap_ratio([(value, 2 * value) for value in values], statistic, seed=1)

    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


def test_ratio_depends_on_the_seed_alone() -> None:
    pairs = [(1.0 + 0.1 * index, 2.0 - 0.1 * index) for index in range(9)]

    one, two, other = (bootstrap_ratio(pairs, "mean", seed) for seed in (1, 1, 2))

    assert one == two
    assert other is not None
    assert one is not None
    assert (other.low, other.high) != (one.low, one.high)
    assert other.value == one.value


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0)], [(0.0, 1.0), (0.0, 2.0)]], ids=["none", "one", "zero below"])
def test_too_little_to_compare_gives_no_ratio(pairs: list[tuple[float, float]]) -> None:
    assert bootstrap_ratio(pairs, "p50", seed=0) is None


def test_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for seed in range(100):
        prompts = random.gamma(9.0, size=40)  # what the prompt does to both
        first, second = prompts * random.normal(1.0, 0.1, 40), prompts * random.normal(1.5, 0.15, 40)
        ratio = bootstrap_ratio(list(zip(first, second, strict=True)), "mean", seed)
        assert ratio is not None
        held += ratio.low <= 1.5 <= ratio.high

    assert 88 <= held <= 99


def test_many_pairs_are_drawn_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(1.0 + index % 7, 3.0 + index % 5) for index in range(100)]
    at_once = bootstrap_ratio(pairs, "mean", seed=3)
    monkeypatch.setattr("omni_server.bench.statistics._BATCH_VALUES", 700)

    in_batches = bootstrap_ratio(pairs, "mean", seed=3)

    assert in_batches == at_once
