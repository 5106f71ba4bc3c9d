from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.capabilities import DuplexCapabilities
from omni_core.deploy.frontends import Frontend, check_frontends, frontends
from omni_core.deploy.replica_groups import fewest_replicas, replica_groups
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig

PIPELINE = PipelineConfig(
    model_type="moshi",
    stages=(StagePipelineConfig(stage_id=0, model_stage="talker", final_output=True),),
    duplex_plugin="acme.duplex:Plugin",
)
RESUMABLE = DuplexCapabilities(supports_session_resume=True)
NOT_RESUMABLE = DuplexCapabilities(supports_session_resume=False)


def groups(replicas: int, stages: int = 2) -> tuple[Mapping[int, int], ...]:
    return replica_groups(None, dict.fromkeys(range(stages), replicas))


def budgets(split: Sequence[Frontend]) -> list[int]:
    return [frontend.max_sessions for frontend in split]


@pytest.mark.parametrize(
    ("max_sessions", "count", "replicas", "cap", "expected"),
    [
        (64, 4, 8, 8, [16, 16, 16, 16]),
        (10, 4, 8, 8, [3, 3, 2, 2]),
        (3, 4, 8, 8, [1, 1, 1, 0]),
        (2, 4, 4, 8, [1, 1, 0, 0]),
        (64, 2, 3, 8, [16, 8]),
        (100, 1, 2, 2, [100]),
    ],
    ids=["personaplex", "rest to the first", "one without a slot", "two without a slot", "bounded by replicas", "one frontend"],
)
def test_sessions_are_split_evenly(max_sessions: int, count: int, replicas: int, cap: int, expected: list[int]) -> None:
    """FE-06, FE-07."""
    assert budgets(frontends(count, groups(replicas), max_sessions, cap)) == expected


def test_group_belongs_to_the_frontend_of_its_position() -> None:
    """FE-03."""
    split = frontends(3, groups(8), 64, 8)

    assert [frontend.groups for frontend in split] == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert [frontend.index for frontend in split] == [0, 1, 2]


def test_frontend_without_a_slot_warms_nothing_up() -> None:
    """FE-06."""
    split = frontends(2, groups(4), 1, 1)

    assert [frontend.warmed_groups for frontend in split] == [(0, 2), ()]
    assert split[1].groups == (1, 3)


def test_bound_counts_a_shared_replica_once() -> None:
    """FE-06: the bound is by the stage of which the frontend has the fewest replicas."""
    shared = replica_groups([{0: 0, 1: 0}, {0: 2, 1: 1}, {0: 1, 1: 0}, {0: 3, 1: 1}], {0: 4, 1: 2})

    split = frontends(2, shared, 64, 3)

    assert [frontend.groups for frontend in split] == [(0, 2), (1, 3)]
    assert budgets(split) == [3, 3]


def test_legacy_policy_has_one_frontend_with_all_sessions() -> None:
    """FE-07, DX-03."""
    assert frontends(1, (), 5, None) == (Frontend(0, (), 5),)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_frontend_is_needed(count: int) -> None:
    """FE-01."""
    with pytest.raises(ConfigError, match=f"at least 1 frontend, not {count}") as caught:
        frontends(count, groups(2), 4, 2)
    assert caught.value.where == "--api-server-count"


def test_more_frontends_than_groups_are_refused() -> None:
    """FE-03, E19."""
    with pytest.raises(ConfigError, match="5 frontends are more than the 4 replica groups") as caught:
        frontends(5, groups(4), 64, 8)
    assert "--api-server-count 4 or less" in caught.value.hint
    assert caught.value.where == "--api-server-count"


def test_groups_of_two_frontends_cannot_share_a_replica() -> None:
    """FE-04, E19."""
    shared = replica_groups([{0: 0, 1: 0}, {0: 1, 1: 0}, {0: 2, 1: 0}, {0: 3, 1: 1}], {0: 4, 1: 2})

    with pytest.raises(ConfigError) as caught:
        frontends(2, shared, 8, 4)

    assert "2 frontends cannot share the 4 replica groups" in caught.value.message
    assert "groups 0, 1 and 2 use replica 0 of stage 1, but belong to frontends 0, 1 and 0" in caught.value.message
    assert "replica 1 of stage 1" not in caught.value.message
    assert "modulo 2" in caught.value.hint


@pytest.mark.parametrize(
    ("policy", "capabilities", "facts"),
    [
        ("legacy", NOT_RESUMABLE, ["replica_policy is legacy"]),
        ("least_sessions", RESUMABLE, ["the plugin acme.duplex:Plugin can resume sessions"]),
        ("legacy", RESUMABLE, ["replica_policy is legacy", "the plugin acme.duplex:Plugin can resume sessions"]),
    ],
    ids=["legacy", "resume", "both"],
)
def test_several_frontends_need_placement_and_no_resume(
    policy: str, capabilities: DuplexCapabilities, facts: list[str]
) -> None:
    """FE-02, E19."""
    with pytest.raises(ConfigError) as caught:
        check_frontends(3, policy, PIPELINE, capabilities)

    assert "pipeline 'moshi' cannot run 3 duplex frontends" in caught.value.message
    assert [fact for fact in facts if fact not in caught.value.message] == []
    assert "--api-server-count 1" in caught.value.hint
    assert ("least_sessions" in caught.value.hint) == (not capabilities.supports_session_resume)


def test_what_one_frontend_can_do_is_not_restricted() -> None:
    """FE-02, FE-07."""
    check_frontends(1, "legacy", PIPELINE, RESUMABLE)
    check_frontends(2, "least_sessions", PIPELINE, NOT_RESUMABLE)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 3), st.integers(1, 100), st.integers(1, 9))
def test_frontends_partition_the_groups_and_the_sessions(
    count: int, replicas: int, stages: int, max_sessions: int, cap: int
) -> None:
    """FE-03, FE-05, FE-06."""
    own = groups(replicas, stages)
    if count > replicas:
        with pytest.raises(ConfigError, match=f"{count} frontends are more than the {replicas} replica group"):
            frontends(count, own, max_sessions, cap)
        return

    split = frontends(count, own, max_sessions, cap)

    assert sorted(group for frontend in split for group in frontend.groups) == list(range(replicas))
    assert all(group % count == frontend.index for frontend in split for group in frontend.groups)
    assert sum(budgets(split)) <= max_sessions
    if count > 1:
        shares = [max_sessions // count + (frontend.index < max_sessions % count) for frontend in split]
        assert sum(shares) == max_sessions
        assert budgets(split) == [min(share, len(f.groups) * cap) for share, f in zip(shares, split, strict=True)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8, unique=True),
    st.integers(2, 4),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_owners_of_shared_replicas_agree_or_are_refused(
    pairs: list[tuple[int, int]], count: int, max_sessions: int, cap: int
) -> None:
    """FE-04: whichever groups are written, no replica has two owners."""
    own = [dict(enumerate(pair)) for pair in pairs]
    crossing = any(a % count != b % count and own[a].items() & own[b].items() for a, b in combinations(range(len(own)), 2))

    try:
        split = frontends(count, own, max_sessions, cap)
    except ConfigError:
        assert crossing or count > len(own)
        return

    assert not crossing
    for frontend in split:
        assert frontend.max_sessions <= fewest_replicas([own[group] for group in frontend.groups]) * cap
