"""The part of a deployment that one frontend runs (FE-03 to FE-06)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omni_core.deploy.devices import replica_devices
from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontend_part import frontend_part
from omni_core.deploy.frontends import frontends
from omni_core.stage import ResolvedPipeline
from omni_core.testing.pipelines import fake_pipeline


def deployment(count: int, groups: tuple[dict[int, int], ...], devices: dict[int, str] | None = None) -> ResolvedPipeline:
    replicas = {stage: 1 + max(group[stage] for group in groups) for stage in (0, 1)}
    settings = DuplexSettings(max_sessions=64, replica_policy="least_sessions", max_sessions_per_replica=8)
    plan = DuplexPlan(settings, groups, frontends(count, groups, 64, 8))
    return replace(fake_pipeline(replicas=replicas, devices=devices), duplex=plan)


EIGHT = tuple({0: number, 1: number} for number in range(8))


def test_four_frontends_of_eight_groups_run_two_each() -> None:
    """The contract's example: 64 sessions, 8 on a replica, 16 for each frontend."""
    whole = deployment(4, EIGHT, {0: "0,1,2,3,4,5,6,7", 1: "8,9,10,11,12,13,14,15"})

    parts = [frontend_part(whole, index) for index in range(4)]

    assert [[stage.num_replicas for stage in part.stages] for part in parts] == [[2, 2]] * 4
    assert [[replica_devices(stage) for stage in part.stages] for part in parts][1] == [["1", "5"], ["9", "13"]]
    for index, part in enumerate(parts):
        assert part.duplex is not None
        (frontend,) = part.duplex.frontends
        assert (frontend.index, frontend.groups, frontend.max_sessions) == (index, (0, 1), 16)
        assert part.duplex.groups == ({0: 0, 1: 0}, {0: 1, 1: 1})


def test_every_device_and_every_replica_is_run_once() -> None:
    whole = deployment(3, EIGHT, {0: "0,1,2,3,4,5,6,7"})

    parts = [frontend_part(whole, index) for index in range(3)]

    devices = [device for part in parts for device in replica_devices(part.stages[0])]
    assert sorted(map(str, devices)) == list("01234567")
    assert sum(part.stages[1].num_replicas for part in parts) == 8


def test_groups_that_share_a_replica_still_share_it() -> None:
    """FE-04: groups 0 and 2 are frontend 0's, and use replica 0 of stage 1 both."""
    groups = ({0: 0, 1: 0}, {0: 1, 1: 1}, {0: 2, 1: 0}, {0: 3, 1: 1})

    part = frontend_part(deployment(2, groups), 0)

    assert part.duplex is not None
    assert part.duplex.groups == ({0: 0, 1: 0}, {0: 1, 1: 0})
    assert [stage.num_replicas for stage in part.stages] == [2, 1]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_budgets_are_what_all_parts_admit_together(count: int) -> None:
    whole = deployment(count, EIGHT)

    budgets = [part.duplex.frontends[0].max_sessions for index in range(count) if (part := frontend_part(whole, index)).duplex]

    assert sum(budgets) == 64
