from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.deploy.replica_groups import capacity, count_reserved, fewest_replicas, place, replica_groups
from omni_core.errors import ConfigError

Groups = Sequence[Mapping[int, int]]

counts = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda sizes: dict(enumerate(sizes)))


@st.composite
def groups_of(draw: st.DrawFn, sizes: st.SearchStrategy[dict[int, int]] = counts) -> tuple[Mapping[int, int], ...]:
    """Draw valid groups: every replica in at least one, none twice."""
    replicas = draw(sizes)
    every = [dict(enumerate(choice)) for choice in product(*(range(count) for count in replicas.values()))]
    groups = draw(st.lists(st.sampled_from(every), max_size=6, unique_by=lambda group: tuple(group.items())))
    for stage, count in replicas.items():
        for replica in range(count):
            if all(group[stage] != replica for group in groups):
                groups.append(next(group for group in every if group[stage] == replica and group not in groups))
    return replica_groups(draw(st.permutations(groups)), replicas)


def refused(explicit: Any, replicas: Mapping[int, int]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        replica_groups(explicit, replicas, "my.yaml:4:3")
    assert caught.value.where == "my.yaml:4:3"
    assert caught.value.param == "duplex_session.replica_groups"
    return caught.value


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 4))
def test_equal_counts_make_a_group_of_each_number(replicas: int, stages: int) -> None:
    """DP-02."""
    groups = replica_groups(None, dict.fromkeys(range(stages), replicas))

    assert groups == tuple(dict.fromkeys(range(stages), number) for number in range(replicas))


def test_unequal_counts_need_explicit_groups() -> None:
    """DP-02, E18."""
    error = refused(None, {0: 2, 1: 1})

    assert "stage 0 has 2, stage 1 has 1" in error.message
    assert "[{0: 0, 1: 0}, {0: 1, 1: 0}]" in error.hint


@settings(deadline=None)
@given(counts)
def test_groups_of_the_hint_can_be_used(replicas: dict[int, int]) -> None:
    error = refused([], replicas)

    example = ast.literal_eval(error.hint.partition("such as ")[2])

    assert replica_groups(example, replicas) == tuple(example)


def test_explicit_groups_keep_their_order() -> None:
    """DP-03: the position of a group is its number."""
    written = [{1: 0, 0: 1}, {0: 0, 1: 0}]

    assert [list(group.items()) for group in replica_groups(written, {0: 2, 1: 1})] == [[(0, 1), (1, 0)], [(0, 0), (1, 0)]]


@pytest.mark.parametrize(
    ("groups", "facts"),
    [
        ([{0: 0, 1: 0}, {0: 1}], ["group 1: it has no replica of stage 1", "replica 1 of stage 1 is in no group"]),
        ([{0: 0, 1: 0}, {0: 1, 1: 1, 2: 0}], ["group 1: there is no stage 2 (with replica 0); the stages are 0, 1"]),
        ([{0: 0, 1: 0}, {0: 1, 1: 5}], ["group 1: there is no replica 5 of stage 1; it has 2"]),
        ([{0: 0, 1: 0}, {0: 1, 1: -1}], ["group 1: replica -1 of stage 1 is no integer from 0"]),
        ([{0: 0, 1: 0}, {0: 1, 1: True}], ["group 1: replica True of stage 1 is no integer from 0"]),
        ([{0: 0, 1: 0}, {0: 1, 1: "one"}], ["group 1: replica 'one' of stage 1 is no integer from 0"]),
        ([{0: 0, 1: 0}, {0: 1, 1: 1.0}], ["group 1: replica 1.0 of stage 1 is no integer from 0"]),
        ([{0: 0, 1: 0}, {0: 1, 1: [1]}], ["group 1: replica [1] of stage 1 is no integer from 0"]),
        ([{0: 0, 1: 0}, {0: 1, -1: 1}], ["group 1: stage -1 (with replica 1) is no integer from 0"]),
        (
            [{0: 0, 1: 0}, {0: 1, True: 1}],
            ["group 1: stage True (with replica 1) is no integer from 0", "no replica of stage 1"],
        ),
        ([{0: 0, 1: 0}, {0: 1, "x": 1}], ["group 1: stage 'x' (with replica 1) is no integer from 0"]),
        ([{0: 0, 1: 0}, [1, 1]], ["group 1 is [1, 1], not a mapping of stage to replica"]),
        ([{0: 0, 1: 0}, {0: 0, 1: 1}], ["replica 1 of stage 0 is in no group"]),
        ([{0: 0, 1: 0}, {0: 1, 1: 1}, {1: 0, 0: 0}], ["group 2 is the same as group 0"]),
        ([], ["replica 0 of stage 0 is in no group", "replica 1 of stage 1 is in no group"]),
    ],
    ids=[
        "stage missing",
        "stage unknown",
        "replica unknown",
        "replica negative",
        "replica boolean",
        "replica a string",
        "replica a float",
        "replica a list",
        "stage negative",
        "stage boolean",
        "stage a string",
        "no mapping",
        "replica unused",
        "duplicate",
        "empty",
    ],
)
def test_groups_that_cannot_be_used_are_refused(groups: Any, facts: list[str]) -> None:
    """DP-03, E18."""
    message = refused(groups, {0: 2, 1: 2}).message

    assert [fact for fact in facts if fact not in message] == []


def test_all_faults_are_named_at_once() -> None:
    """E18."""
    message = refused([{0: 0}, {0: 9, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 0}], {0: 2, 1: 2}).message

    assert len(message.splitlines()) == 6
    for fact in (
        "group 0: it",
        "group 1: there is no replica 9",
        "group 3 is the same as group 2",
        "1 of stage 0",
        "1 of stage 1",
    ):
        assert fact in message


def test_message_about_thousands_of_replicas_stays_short() -> None:
    error = refused([{0: 0}, {0: 3}], {0: 10**9})

    assert "replica 9 of stage 0 is in no group" in error.message
    assert f"neither are {10**9 - 10} further replicas of stage 0" in error.message
    assert len(str(error)) < 1000


anything = st.lists(
    st.dictionaries(st.integers(-1, 3) | st.booleans() | st.text(max_size=1), st.integers(-1, 3) | st.none(), max_size=3),
    max_size=5,
)
nearly_right = st.lists(st.fixed_dictionaries({0: st.integers(0, 2), 1: st.integers(0, 2)}), min_size=2, max_size=5)


@settings(deadline=None)
@given(anything | nearly_right, st.fixed_dictionaries({0: st.integers(1, 3), 1: st.integers(1, 3)}) | counts)
def test_accepted_groups_keep_every_promise(groups: list[Any], replicas: dict[int, int]) -> None:
    """DP-03: whatever is written either is refused or has all stages, existing and used replicas, and no duplicate."""
    try:
        accepted = replica_groups(groups, replicas)
    except ConfigError:
        return

    assert all(list(group) == sorted(replicas) for group in accepted)
    assert {replica for group in accepted for replica in group.items()} == {
        (stage, replica) for stage, count in replicas.items() for replica in range(count)
    }
    assert len({tuple(group.items()) for group in accepted}) == len(groups)


def most_sessions(groups: Groups, cap: int) -> int:
    """Return how many sessions fit, by trying everything."""
    best = 0
    for chosen in product(range(cap + 1), repeat=len(groups)):
        used = count_reserved(groups, [index for index, sessions in enumerate(chosen) for _ in range(sessions)])
        if max(used.values(), default=0) <= cap:
            best = max(best, sum(chosen))
    return best


@settings(deadline=None)
@given(
    groups_of(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(lambda sizes: dict(enumerate(sizes)))), st.integers(1, 2)
)
def test_capacity_is_exact_for_two_stages(groups: Groups, cap: int) -> None:
    """DP-04."""
    assert capacity(groups, cap) == most_sessions(groups, cap)


@settings(deadline=None)
@given(
    groups_of(st.lists(st.integers(1, 2), min_size=3, max_size=3).map(lambda sizes: dict(enumerate(sizes)))), st.integers(1, 2)
)
def test_capacity_is_an_upper_bound_within_that_of_the_replicas(groups: Groups, cap: int) -> None:
    """DP-04, FE-06."""
    assert most_sessions(groups, cap) <= capacity(groups, cap) <= fewest_replicas(groups) * cap


def test_shared_replica_limits_its_groups() -> None:
    """DP-04: the contract's example."""
    groups = replica_groups([{0: 0, 1: 0}, {0: 1, 1: 0}], {0: 2, 1: 1})

    assert capacity(groups, 2) == 2
    assert admit(groups, 2, 4) == [0, 1, None, None]


def test_no_groups_have_no_capacity() -> None:
    assert capacity((), 3) == 0
    assert place((), {}, 3) is None


def admit(groups: Groups, cap: int, sessions: int) -> list[int | None]:
    """Open sessions one after another and return the group of each."""
    opened: list[int | None] = []
    last = None
    for _ in range(sessions):
        held = [group for group in opened if group is not None]
        opened.append(place(groups, count_reserved(groups, held), cap, last))
        last = last if opened[-1] is None else opened[-1]
    return opened


def test_sessions_go_round_until_all_replicas_are_full() -> None:
    """DP-05, DP-07."""
    assert admit(replica_groups(None, {0: 2, 1: 2}), 2, 5) == [0, 1, 0, 1, None]


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ({(0, 0): 3, (0, 1): 2, (1, 1): 2}, 1),
        ({(0, 0): 2, (0, 1): 2, (1, 1): 2}, 0),
        ({(0, 0): 2, (1, 0): 2, (0, 1): 2, (1, 1): 1}, 1),
        ({(0, 0): 4, (0, 1): 3, (1, 1): 3}, 1),
        ({(0, 0): 4, (1, 1): 4}, None),
    ],
    ids=["highest ratio before the total", "then the total", "the other way round", "full", "all full"],
)
def test_highest_ratio_decides_before_the_total(reserved: dict[tuple[int, int], int], expected: int | None) -> None:
    """DP-05, decision 1."""
    assert place(replica_groups(None, {0: 2, 1: 2}), reserved, 4, last=1) == expected


@pytest.mark.parametrize(("last", "expected"), [(None, 0), (0, 1), (1, 2), (2, 0)])
def test_ties_go_to_the_group_after_the_last(last: int | None, expected: int) -> None:
    """DP-05."""
    assert place(replica_groups(None, {0: 3}), {}, 1, last) == expected


def test_only_eligible_groups_are_chosen() -> None:
    """DP-05, DP-10, FE-05: a frontend has its own groups, and a group with a dead replica takes no session."""
    groups = replica_groups(None, {0: 4})

    assert place(groups, {(0, 1): 1}, 2, last=0, eligible={1, 3}) == 3
    assert place(groups, {(0, 1): 2}, 2, eligible={1}) is None
    assert place(groups, {}, 2, eligible=()) is None


@settings(deadline=None)
@given(groups_of(), st.integers(1, 3), st.data())
def test_placement_fills_the_least_loaded_group_and_never_exceeds_capacity(
    groups: Groups, cap: int, data: st.DataObject
) -> None:
    """DP-01, DP-04, DP-05: sessions open and close in any order."""
    sessions: list[int] = []
    last = None
    for _ in range(data.draw(st.integers(1, 20))):
        closes: bool = data.draw(st.booleans())
        if sessions and closes:
            sessions.pop(data.draw(st.integers(0, len(sessions) - 1)))
            continue
        reserved = count_reserved(groups, sessions)
        loads = [[reserved[replica] for replica in group.items()] for group in groups]
        keys = {index: (max(load) / cap, sum(load)) for index, load in enumerate(loads) if max(load) < cap}

        chosen = place(groups, reserved, cap, last)

        if not keys:
            assert chosen is None
            continue
        least = [index for index, key in keys.items() if key == min(keys.values())]
        after = [index for index in least if last is None or index > last]
        assert chosen == (after or least)[0]
        sessions.append(chosen)
        last = chosen
        assert max(count_reserved(groups, sessions).values()) <= cap
        assert len(sessions) <= capacity(groups, cap)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.data())
def test_separate_groups_are_filled_evenly(replicas: int, stages: int, cap: int, data: st.DataObject) -> None:
    """DP-05: with replicas of its own for each group, loads differ by at most one, and everything fits."""
    groups = replica_groups(None, dict.fromkeys(range(stages), replicas))
    sessions = data.draw(st.integers(0, replicas * cap))

    loads = Counter(admit(groups, cap, sessions))

    assert None not in loads
    assert max(loads.values(), default=0) - min((loads[group] for group in range(replicas)), default=0) <= 1
    assert admit(groups, cap, replicas * cap + 1).count(None) == 1


@settings(deadline=None)
@given(groups_of(), st.integers(0, 3))
def test_idle_groups_take_turns(groups: Groups, rounds: int) -> None:
    """DP-05: a session that ends before the next one opens does not keep later ones on its group."""
    chosen: list[int] = []
    for _ in range(rounds * len(groups)):
        group = place(groups, {}, 1, chosen[-1] if chosen else None)
        assert group is not None
        chosen.append(group)

    assert all(count == rounds for count in Counter(chosen).values())
