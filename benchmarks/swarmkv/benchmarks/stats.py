"""The few statistics that every measurement shows: median with its range, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several rounds, and how far they lie apart."""

    median: float
    min: float
    max: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values), len(values))

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all values do not exceed; of at least one value."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def p50_p99(values: Sequence[float]) -> dict[str, float] | None:
    """The middle and the tail; None without values."""
    return {"p50": percentile(values, 50), "p99": percentile(values, 99)} if values else None
