"""Sets of time, as sorted intervals that do not touch: what ran while something else did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, with what overlaps or touches joined."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def overlap(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The time that is in both."""
    ends = [union(some), union(others)]
    shared = ((max(a, c), min(b, d)) for a, b in ends[0] for c, d in ends[1])
    return [(start, end) for start, end in shared if end > start]


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in all, what overlaps counted once."""
    return sum(end - start for start, end in union(intervals))


def utilisation(running: Sequence[Interval], waiting: Sequence[Interval], slots: int) -> float | None:
    """The part of all slots that ran while something waited for one; None when nothing ever waited."""
    busy = union(waiting)
    span = length(busy)
    used = sum(length(overlap([one], busy)) for one in running)
    return used / (slots * span) if span else None
