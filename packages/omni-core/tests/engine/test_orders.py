"""What a stage still obeys after a row of calls, and which call ends what it no longer should."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.engine.orders import UNNAMED, Orders, way_back
from omni_core.errors import RequestError, ServiceError

KEEP = {"mode": "keep"}


def after(*calls: tuple[str, dict[str, Any]]) -> Orders:
    orders = Orders()
    for method, arguments in calls:
        orders.note(method, arguments)
    return orders


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([("pause", KEEP)], ["pause"]),
        ([("pause", KEEP), ("is_paused", {})], ["pause"]),
        ([("pause", KEEP), ("resume", {})], []),
        ([("pause", KEEP), ("sleep", {"level": 1})], ["pause", "sleep"]),
        ([("sleep", {"level": 1}), ("pause", KEEP), ("wake_up", {})], []),
    ],
)
def test_pause_and_sleep_last_until_they_are_ended(calls: list[tuple[str, dict[str, Any]]], told: list[str]) -> None:
    orders = after(*calls)

    assert list(orders.told) == told
    assert orders.holds == bool(told)


def test_call_that_failed_changes_nothing() -> None:
    orders = after(("pause", KEEP))

    orders.note("resume", {}, ServiceError("no"))
    orders.note("sleep", {"level": 1}, ServiceError("no"))

    assert orders.told == {"pause": KEEP}


@pytest.mark.parametrize(
    ("calls", "weights"),
    [
        ([("start_weight_update", {})], UNNAMED),
        ([("start_weight_update", {}), ("finish_weight_update", {"weight_version": "step-7"})], "step-7"),
        ([("finish_weight_update", {"weight_version": None})], UNNAMED),
        ([("finish_weight_update", {"weight_version": "step-7"}), ("update_weights", {})], UNNAMED),
        ([("finish_weight_update", {}), ("update_weight_version", {"version": "step-8"})], "step-8"),
        ([("update_weight_version", {"version": "the checkpoint's"})], ""),
        ([("start_weight_update", {}), ("reload_weights", {})], ""),
    ],
)
def test_weights_are_the_checkpoints_until_a_trainer_changes_them(
    calls: list[tuple[str, dict[str, Any]]], weights: str
) -> None:
    assert after(*calls).weights == weights


def test_update_that_was_refused_changes_no_weights_and_one_that_failed_may_have() -> None:
    refused, failed = Orders(), Orders()

    refused.note("update_weights", {}, RequestError("not paused"))
    failed.note("update_weights", {}, ServiceError("the trainer is gone"))

    assert (refused.weights, failed.weights) == ("", UNNAMED)


@pytest.mark.parametrize(
    ("before", "now", "call"),
    [
        ((), (), ""),
        (("pause",), ("pause",), ""),
        (("pause",), (), "resume"),
        (("sleep",), (), "wake_up"),
        (("pause", "sleep"), ("pause",), "wake_up"),
        (("pause", "sleep"), ("sleep",), ""),
        (("pause",), ("sleep",), ""),
        ((), ("pause",), ""),
    ],
)
def test_way_back_is_the_call_that_ends_what_is_over(before: tuple[str, ...], now: tuple[str, ...], call: str) -> None:
    assert way_back(dict.fromkeys(before), dict.fromkeys(now)) == call
