"""Which replica group holds which session (rules DP-04 to DP-07, DP-10 and FE-05)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from omni_core.deploy.frontends import Frontend
from omni_core.deploy.replica_groups import Group, Replica, place
from omni_duplex.errors import CapacityError


class Placement:
    """Count what every replica holds and choose groups for new sessions.

    Args:
        groups: All replica groups; empty under the legacy policy, which places requests and not sessions.
        cap: `max_sessions_per_replica`.
        frontend: The process that this belongs to: its groups and its share of the sessions.
        limit: `max_sessions`, for messages.
    """

    def __init__(self, groups: Sequence[Group], cap: int, frontend: Frontend, limit: int) -> None:
        self._groups = groups
        self._cap = cap
        self._frontend = frontend
        self._limit = limit
        self._reserved: Counter[Replica] = Counter()
        self._held: dict[str, int] = {}
        self._shut: set[Replica] = set()
        """Replicas that get no new session: those that are gone, and those that only finish what they have."""
        self._last: int | None = None

    @property
    def held(self) -> int:
        """Sessions that are being opened, open, or being closed."""
        return len(self._held)

    @property
    def free(self) -> int:
        """Sessions that can be opened now, at most."""
        left = self._frontend.max_sessions - self.held
        if not self._groups:
            return max(0, left)
        room = Counter(
            {index: self._cap - max(self._reserved[replica] for replica in self._groups[index].items()) for index in self._open}
        )
        return max(0, min(left, sum(room.values())))

    @property
    def _open(self) -> list[int]:
        return [index for index in self._frontend.groups if not self._shut.intersection(self._groups[index].items())]

    def reserve(self, session_id: str) -> int:
        """Reserve a group for a session and return its number; 0 under the legacy policy.

        Raises:
            CapacityError: The sessions or the replicas are all taken.
        """
        assert session_id not in self._held, "ids are never given twice"
        if self.held >= self._frontend.max_sessions:
            share = "" if self._frontend.max_sessions == self._limit else f" ({self._frontend.max_sessions} in this process)"
            raise CapacityError(f"duplex_session_capacity_exhausted: limit={self._limit}{share}")
        group = 0
        if self._groups:
            chosen = place(self._groups, self._reserved, self._cap, self._last, eligible=self._open)
            if chosen is None:
                raise CapacityError(f"replica_capacity_exhausted: every replica holds {self._cap} sessions, or takes no more")
            group = self._last = chosen
            self._reserved.update(self._groups[group].items())
        self._held[session_id] = group
        return group

    def release(self, session_id: str) -> None:
        """Give a session's slot back; a session that holds none is ignored."""
        group = self._held.pop(session_id, None)
        if group is not None and self._groups:
            self._reserved.subtract(self._groups[group].items())

    def lose(self, stage: int, replica: int) -> list[str]:
        """Note that a replica is dead and return the sessions that were on it, idle ones too (DP-10)."""
        self._shut.add((stage, replica))
        if not self._groups:
            return list(self._held)
        return [session for session, group in self._held.items() if self._groups[group].get(stage) == replica]

    def only(self, ready: Collection[Replica]) -> None:
        """Give new sessions to these replicas alone: others are gone or leave. What sessions hold stays as it is."""
        self._shut = {replica for group in self._groups for replica in group.items() if replica not in ready}

    def by_group(self) -> Counter[int]:
        """Return how many sessions each group holds."""
        return Counter(self._held.values())
