"""What is counted for each model: the fields of its hash in Redis, for the scripts that write and all that read.

A stage's times are a histogram: in how many cases it took up to a bound, and no less than the bound before it. What
took longer than the last bound is in the count alone. Two readings can be subtracted, which gives what was between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Stage = Literal["queue", "prefill", "restore", "ttft", "inter_token", "decode", "e2e"]
"""queue: ready to job start. prefill, restore: the work itself. ttft: job start to the first token. inter_token:
mean of a branch. decode: first token to the last. e2e: accepted (or put back) to done. All but prefill: of branches
that ended as done."""

Counter = Literal[
    "runs_submitted",
    "runs_done",
    "runs_completed_with_errors",
    "runs_failed",
    "runs_cancelled",
    "branches_done",
    "branches_failed",
    "branches_cancelled",
    "prefills",
    "snapshot_hits",  # runs whose snapshot was there, or whose prefill was under way
    "snapshot_misses",
    "evictions",
    "tokens_reused",
    "tokens_recomputed",
    "tokens_prompt",
    "tokens_generated",
    "tokens_prefilled",
    "prefill_saved_ms",  # what branches did not prefill, less what was prefilled for them
    "retries",  # attempts but the first ones
    "crashes",  # jobs whose worker died
    "dead",
    "rebuilds",
]
STAGES: tuple[Stage, ...] = get_args(Stage)
COUNTERS: tuple[Counter, ...] = get_args(Counter)
BOUNDS_MS: tuple[float, ...] = (
    *(1, 2.5, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000),
)
SINCE = "since_ms"  # the field that says when counting began
MINUTES_KEPT = 65  # copies of each hash, one a minute


@dataclass(frozen=True, slots=True)
class Histogram:
    """Times of one stage. `counts` has one number a bound of BOUNDS_MS, and the last for all beyond."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    sum_ms: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_ms(self) -> float | None:
        """None when nothing was timed."""
        return self.sum_ms / self.count if self.count else None

    def percentile_ms(self, share: float) -> float | None:
        """The time that a `share` (0 to 1) of all cases did not exceed; None when nothing was timed.

        Exact to a bucket, and linear inside it; what lies beyond the last bound counts as the last bound.
        """
        rank, seen, below_ms = share * self.count, 0, 0.0
        for count, bound_ms in zip(self.counts, BOUNDS_MS, strict=False):
            if count and seen + count >= rank:
                return below_ms + (bound_ms - below_ms) * max(0.0, rank - seen) / count
            seen, below_ms = seen + count, bound_ms
        return below_ms if self.count else None

    def __sub__(self, earlier: Histogram) -> Histogram:
        """What came after an earlier reading; never less than nothing, should Redis have been emptied between."""
        counts = tuple(max(0, new - old) for new, old in zip(self.counts, earlier.counts, strict=True))
        return Histogram(counts, max(0.0, self.sum_ms - earlier.sum_ms))

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.sum_ms + other.sum_ms)


@dataclass(frozen=True, slots=True)
class Totals:
    """One reading of a model's hash, or the difference of two. Every counter and stage has its entry.

    `since_ms`: when counting began (Redis' clock); 0 when nothing was ever counted.
    """

    counters: Mapping[Counter, int]
    stages: Mapping[Stage, Histogram]
    since_ms: int = 0

    @classmethod
    def read(cls, row: Mapping[bytes, bytes]) -> Totals:
        """From the fields as Redis has them; what is missing, or no number, is 0."""
        counters: dict[Counter, int] = {name: _number(row, name) for name in COUNTERS}
        stages: dict[Stage, Histogram] = {stage: _histogram(row, stage) for stage in STAGES}
        return cls(counters, stages, _number(row, SINCE))

    def __sub__(self, earlier: Totals) -> Totals:
        return Totals(
            {name: max(0, value - earlier.counters[name]) for name, value in self.counters.items()},
            {stage: times - earlier.stages[stage] for stage, times in self.stages.items()},
            self.since_ms,
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            {name: value + other.counters[name] for name, value in self.counters.items()},
            {stage: times + other.stages[stage] for stage, times in self.stages.items()},
            min(self.since_ms, other.since_ms) or max(self.since_ms, other.since_ms),
        )


def bucket_field(stage: Stage, bound_ms: float) -> str:
    """The field that counts what took up to this bound; Lua spells numbers the same way."""
    return f"{stage}:le:{bound_ms}"


def lua_bounds() -> str:
    """Lua source: the bounds as a local table."""
    return f"local BOUNDS_MS = {{{', '.join(str(bound) for bound in BOUNDS_MS)}}}"


def _histogram(row: Mapping[bytes, bytes], stage: Stage) -> Histogram:
    counts = [_number(row, bucket_field(stage, bound)) for bound in BOUNDS_MS]
    beyond = max(0, _number(row, f"{stage}:count") - sum(counts))
    return Histogram((*counts, beyond), _number(row, f"{stage}:sum_us") / 1000)


def _number(row: Mapping[bytes, bytes], field: str) -> int:
    try:
        return max(0, int(row.get(field.encode(), b"0")))
    except ValueError:
        return 0


NOTHING = Totals.read({})
