"""A player that starts with the first packet: when each packet is heard, and how often the player runs dry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_S = 1e-9
"""Less than this is rounding, not silence."""


@dataclass(frozen=True)
class Playback:
    """What a listener hears. Times are on the clock of the packets' arrivals."""

    starts: tuple[float, ...]
    """When each packet begins to sound."""
    underruns: int
    """How often the player had nothing to play before the last packet came."""
    stalled_s: float
    """Seconds of silence in between. A start later by this much would have had no underrun."""
    end: float
    """When the last sample has sounded."""


def play(packets: Sequence[tuple[float, float]]) -> Playback:
    """Play packets as they arrive.

    The player starts with the first packet, and goes on with the next one as soon as it is there.

    Args:
        packets: (time of arrival, seconds of audio), in order; at least one.
    """
    assert packets, "there is nothing to play"
    starts: list[float] = []
    underruns, stalled = 0, 0.0
    dry = packets[0][0]
    for arrival, seconds in packets:
        if arrival > dry + TOLERANCE_S:
            underruns += 1
            stalled += arrival - dry
            dry = arrival
        starts.append(dry)
        dry += seconds
    return Playback(tuple(starts), underruns, stalled, dry)
