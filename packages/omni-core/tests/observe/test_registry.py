"""Numbers in memory, and their way from one process to another."""

from __future__ import annotations

import threading

import msgspec
import pytest

from omni_core.observe import series
from omni_core.observe.registry import FamilyChange, Registry
from omni_core.observe.series import SERIES, Kind, Series

COUNTER = Series("tests_total", Kind.COUNTER, "Tests.", ("stage", "kind"))
GAUGE = Series("present", Kind.GAUGE, "Present.", ("stage",))
SPREAD = Series("seconds", Kind.HISTOGRAM, "Seconds.", ("stage",), (0.1, 1.0))


def send(changes: list[FamilyChange]) -> list[FamilyChange]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(changes), type=list[FamilyChange])


def test_counters_gauges_and_histograms_keep_their_labels_apart() -> None:
    registry = Registry({"stage": "0"})

    registry.inc(COUNTER, kind="a")
    registry.inc(COUNTER, 2, kind="a")
    registry.inc(COUNTER, kind="b")
    registry.set(GAUGE, 3)
    registry.set(GAUGE, 2)

    assert registry.get(COUNTER, kind="a") == 3
    assert registry.get(COUNTER, kind="b") == 1
    assert registry.total(COUNTER) == 4
    assert registry.get(GAUGE) == 2
    assert registry.get(GAUGE, stage="9") == 0


def test_values_on_a_bound_count_in_its_bucket() -> None:
    registry = Registry()
    for value in (0.05, 0.1, 0.5, 1.0, 7.0):
        registry.observe(SPREAD, value, stage="0")

    (family,) = registry.families()
    (spread,) = family.spreads.values()

    assert spread.counts == [2, 2, 1]
    assert spread.total == pytest.approx(8.65)
    assert registry.count(SPREAD, stage="0") == 5


def test_growth_travels_once_and_adds_up_over_restarts() -> None:
    server = Registry()
    for _ in range(2):  # the second one is a stage that was started again
        stage = Registry({"stage": "1"})
        stage.inc(COUNTER, 5, kind="a")
        stage.observe(SPREAD, 0.5)
        server.apply(send(stage.take()))
        stage.inc(COUNTER, 1, kind="a")
        stage.set(GAUGE, 4)
        server.apply(send(stage.take()))
        assert stage.take() == []

    assert server.get(COUNTER, stage="1", kind="a") == 12
    assert server.count(SPREAD, stage="1") == 2
    assert server.get(SPREAD, stage="1") == 1.0
    assert server.get(GAUGE, stage="1") == 4


def test_a_value_that_was_only_touched_arrives_as_zero() -> None:
    stage, server = Registry({"stage": "1"}), Registry()

    stage.touch(COUNTER, kind="a")
    server.apply(send(stage.take()))

    assert [list(family.values.values()) for family in server.families()] == [[0.0]]


def test_stages_with_other_buckets_for_one_series_live_side_by_side() -> None:
    server = Registry()
    for stage, bounds in (("0", (1.0,)), ("1", (1.0, 2.0))):
        own = Registry({"stage": stage})
        own.observe(Series("seconds", Kind.HISTOGRAM, "Seconds.", ("stage",), bounds), 1.5)
        server.apply(send(own.take()))

    (family,) = server.families()

    assert [spread.counts for spread in family.spreads.values()] == [[0, 1], [0, 1, 0]]


def test_a_dead_stage_leaves_its_counts_and_takes_its_present_values_along() -> None:
    server = Registry()
    for stage in ("0", "1"):
        own = Registry({"stage": stage})
        own.inc(COUNTER, kind="a")
        own.set(GAUGE, 7)
        server.apply(own.take())

    server.drop_gauges(stage="0")

    assert server.get(COUNTER, stage="0", kind="a") == 1
    assert {family.series.name: len(family.values) for family in server.families()} == {"present": 1, "tests_total": 2}
    assert server.get(GAUGE, stage="1") == 7


def test_unknown_labels_are_a_mistake_of_the_code() -> None:
    registry = Registry()

    with pytest.raises(AssertionError, match="tests_total has the labels"):
        registry.inc(COUNTER, stage="0", kind="a", request_id="r1")
    with pytest.raises(AssertionError, match="tests_total has the labels"):
        registry.inc(COUNTER, kind="a")


def test_threads_lose_nothing() -> None:
    registry = Registry({"stage": "0"})
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait(10)
        for _ in range(2000):
            registry.inc(COUNTER, kind="a")
            registry.observe(SPREAD, 0.2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert registry.get(COUNTER, kind="a") == 8000
    assert registry.count(SPREAD) == 8000


def test_names_and_labels_of_our_series_follow_the_rules() -> None:
    names = [item.name for item in SERIES]

    assert len(set(names)) == len(names) > 30
    for item in SERIES:
        assert item.name.startswith("omni_")
        assert item.name.endswith("_total") == (item.kind is Kind.COUNTER)
        assert bool(item.buckets) == (item.kind is Kind.HISTOGRAM)
        assert list(item.buckets) == sorted(set(item.buckets))
        assert item.help.endswith(".")
        assert not {"request_id", "id", "voice", "text", "pid"} & set(item.labels)
        assert ("stage" in item.labels) == ("replica" in item.labels)
    assert series.TOKENS in SERIES
