"""Replica groups of duplex sessions: which replicas serve a session together, how many fit, and which group is next.

A group maps every stage to one replica. Replicas that several groups share have one counter (DP-04). Everything here is a pure
function; whoever places sessions keeps the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

from omni_core.errors import ConfigError

Group = Mapping[int, int]
"""Replica of each stage."""
Replica = tuple[int, int]
"""Stage and replica."""

_EXAMPLE_SIZE = 8
"""Most groups of an example in a hint."""
_LISTED = 8
"""Most unused replicas of a stage that a message names one by one."""


def replica_groups(
    explicit: Sequence[Mapping[int, int]] | None, replicas_by_stage: Mapping[int, int], where: str = ""
) -> tuple[Group, ...]:
    """Return the replica groups of a deployment (DP-02, DP-03).

    Args:
        explicit: `replica_groups` as written; None makes one group of the replicas with the same number.
        replicas_by_stage: How many replicas each stage of the pipeline has.
        where: The place of `replica_groups`, or of `duplex_session` where there is none.

    Raises:
        ConfigError: A group does not name one existing replica for each stage, is there twice, or a replica is in no group; the
            message has a line for each fault. Or there are no groups, and the stages have different numbers of replicas.
    """
    counts = dict(sorted(replicas_by_stage.items()))
    if explicit is None:
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"stage {stage} has {count}" for stage, count in counts.items())
            raise ConfigError(
                f"the stages have different numbers of replicas ({listed}), so their replica groups must be written out",
                where=where,
                hint=f"set replica_groups under duplex_session{_such_as(counts)}",
                param="duplex_session.replica_groups",
            )
        return _covering(counts)
    faults = _faults(explicit, counts)
    if faults:
        raise ConfigError(
            "\n".join(["replica_groups cannot be used:", *(f"  - {fault}" for fault in faults)]),
            where=where,
            hint=f"each group is a mapping of every stage to one of its replicas{_such_as(counts)}",
            param="duplex_session.replica_groups",
        )
    return tuple(dict(sorted(group.items())) for group in explicit)


def _covering(counts: Mapping[int, int]) -> tuple[dict[int, int], ...]:
    """Return groups that use every replica of every stage; for equal counts these are the implicit groups."""
    return tuple(
        {stage: number % count for stage, count in counts.items()} for number in range(max(counts.values(), default=0))
    )


def _such_as(counts: Mapping[int, int]) -> str:
    """Return an example for a hint, where it is short enough to be read."""
    return f", such as {list(_covering(counts))}" if max(counts.values(), default=0) <= _EXAMPLE_SIZE else ""


def _faults(groups: Sequence[Any], counts: Mapping[int, int]) -> list[str]:
    faults = []
    first: dict[frozenset[Any], int] = {}
    used: set[Replica] = set()
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping):
            faults.append(f"group {index} is {group!r}, not a mapping of stage to replica")
            continue
        if own := _group_faults(group, counts):
            faults += [f"group {index}: {fault}" for fault in own]
        elif (same := first.setdefault(frozenset(group.items()), index)) != index:
            faults.append(f"group {index} is the same as group {same}: {dict(group)}")
        used |= {(stage, replica) for stage, replica in group.items() if _is_id(stage) and _is_id(replica)}
    return faults + [fault for stage, count in counts.items() for fault in _unused(stage, count, used)]


def _unused(stage: int, count: int, used: Collection[Replica]) -> list[str]:
    """Return a sentence for each replica of a stage that is in no group; what is beyond the first ones is only counted."""
    unused = (replica for replica in range(count) if (stage, replica) not in used)
    named = [f"replica {replica} of stage {stage} is in no group" for replica in islice(unused, _LISTED)]
    further = count - len(named) - sum(1 for owner, replica in used if owner == stage and replica < count)
    return [*named, f"neither are {further} further replicas of stage {stage}"] if further else named


def _group_faults(group: Mapping[Any, Any], counts: Mapping[int, int]) -> list[str]:
    faults = []
    for stage, replica in group.items():
        if not _is_id(stage):
            faults.append(f"stage {stage!r} (with replica {replica!r}) is no integer from 0")
        elif stage not in counts:
            listed = ", ".join(map(str, counts))
            faults.append(f"there is no stage {stage} (with replica {replica!r}); the stages are {listed}")
        elif not _is_id(replica):
            faults.append(f"replica {replica!r} of stage {stage} is no integer from 0")
        elif replica >= counts[stage]:
            faults.append(f"there is no replica {replica} of stage {stage}; it has {counts[stage]}, counted from 0")
    named = {stage for stage in group if _is_id(stage)}
    return faults + [f"it has no replica of stage {stage}" for stage in counts if stage not in named]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count_reserved(groups: Sequence[Group], sessions: Iterable[int]) -> Counter[Replica]:
    """Return how many sessions each replica holds.

    Args:
        groups: The groups.
        sessions: Group of each session, those being opened or closed included.
    """
    return Counter(replica for group in sessions for replica in groups[group].items())


def capacity(groups: Sequence[Group], cap: int) -> int:
    """Return how many sessions the groups admit at most, which can be less than `max_sessions` (DP-04).

    Between two stages this is `cap` times the largest matching of their replicas; the narrowest pair of stages decides. It is
    exact for one and two stages and an upper bound for more, where an exact answer would take exponential time.

    Args:
        groups: The groups.
        cap: `max_sessions_per_replica`.
    """
    stages = sorted({stage for group in groups for stage in group})
    pairs = [_matching({(group[a], group[b]) for group in groups}) for a, b in combinations(stages, 2)]
    return cap * min(pairs, default=fewest_replicas(groups))


def fewest_replicas(groups: Sequence[Group]) -> int:
    """Return the smallest number of replicas that the groups use of a stage; 0 without groups (FE-06)."""
    used = {replica for group in groups for replica in group.items()}
    return min(Counter(stage for stage, _ in used).values(), default=0)


def _matching(edges: Collection[tuple[int, int]]) -> int:
    """Return the size of the largest set of edges without a common end, found by augmenting paths."""
    ends: dict[int, list[int]] = {}
    for left, right in sorted(edges):
        ends.setdefault(left, []).append(right)
    partner: dict[int, int] = {}
    return sum(_augment(left, ends, partner) for left in ends)


def _augment(root: int, ends: Mapping[int, Sequence[int]], partner: dict[int, int]) -> bool:
    """Give `root` a partner, moving other partners along a path if need be; False where there is no such path."""
    reached_from: dict[int, int] = {}
    waiting = [root]
    while waiting:
        left = waiting.pop()
        for right in ends[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            if right in partner:
                waiting.append(partner[right])
                continue
            before = {end: start for start, end in partner.items()}
            moved: int | None = right
            while moved is not None:
                left = reached_from[moved]
                partner[moved], moved = left, before.get(left)
            return True
    return False


def place(
    groups: Sequence[Group],
    reserved: Mapping[Replica, int],
    capacity: int,
    last: int | None = None,
    *,
    eligible: Collection[int] | None = None,
) -> int | None:
    """Return the group for a new session; None when no group has room (DP-05, DP-07).

    It is the group whose fullest replica is the least full, then the one with the fewest reservations on all of its replicas,
    then the next one after `last`. All replicas have the same capacity, so counts order them as ratios do.

    Args:
        groups: All groups.
        reserved: Reservations of each (stage, replica); a replica without an entry has none.
        capacity: `max_sessions_per_replica`.
        last: The group that was chosen last.
        eligible: Groups that may be chosen, which are those that the frontend owns and whose replicas all live; None for all.
    """
    start = 0 if last is None else last + 1
    best: tuple[int, int] | None = None
    chosen = None
    for step in range(len(groups)):
        index = (start + step) % len(groups)
        if eligible is not None and index not in eligible:
            continue
        counts = [reserved.get(replica, 0) for replica in groups[index].items()]
        load = max(counts), sum(counts)
        if load[0] < capacity and (best is None or load < best):
            best, chosen = load, index
    return chosen
