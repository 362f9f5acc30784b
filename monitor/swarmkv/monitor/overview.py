"""Everything that watchers show, read from Redis in few round trips: one frozen value, the same for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from swarmkv.protocol.ledger import BrokerState, Ledger, LiveWorker, QueueState
from swarmkv.protocol.ledger.statistics import MINUTE_MS
from swarmkv.protocol.messages import StoreInfo
from swarmkv.protocol.statistics import NOTHING, STAGES, Histogram, Stage, Totals

HOUR_MINUTES = 60


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds of a stage over `count` cases; exact to a bucket of the histogram, linear inside it."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float

    @classmethod
    def of(cls, times: Histogram) -> Percentiles | None:
        """None when nothing was timed."""
        p50_ms, p90_ms, p99_ms = (times.percentile_ms(share) for share in (0.5, 0.9, 0.99))
        mean_ms = times.mean_ms
        if mean_ms is None or p50_ms is None or p90_ms is None or p99_ms is None:
            return None
        return cls(times.count, mean_ms, p50_ms, p90_ms, p99_ms)


@dataclass(frozen=True, slots=True)
class PrefillSaved:
    """What sharing has saved: prefix tokens and seconds of prefill that branches did not need.

    `share` of all prefix tokens that would have been decoded had each branch prefilled its document.
    """

    tokens: int
    seconds: float
    share: float

    @classmethod
    def of(cls, totals: Totals) -> PrefillSaved:
        counters = totals.counters
        alone = counters["tokens_reused"] + counters["tokens_recomputed"]
        tokens = max(0, counters["tokens_reused"] - counters["tokens_prefilled"])
        return cls(tokens, counters["prefill_saved_ms"] / 1000, tokens / alone if alone else 0.0)


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened between two copies of the counters: a minute, or longer when nobody swept meanwhile."""

    start_ms: int
    length_s: float
    totals: Totals

    def per_minute(self, count: int) -> float:
        """A count of this stretch as a rate."""
        return count * 60 / self.length_s if self.length_s else 0.0


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Counts of one model, or of all: since they began, over the last hour, and by minute (the oldest first)."""

    model: str
    totals: Totals
    hour: Totals
    minutes: tuple[Minute, ...]

    def percentiles(self, stage: Stage) -> Percentiles | None:
        """Of the last hour; None when nothing was timed."""
        return Percentiles.of(self.hour.stages[stage])

    @property
    def latencies(self) -> dict[Stage, Percentiles]:
        """Of the last hour, of the stages that were timed."""
        found = {stage: self.percentiles(stage) for stage in STAGES}
        return {stage: value for stage, value in found.items() if value is not None}

    @property
    def saved(self) -> PrefillSaved:
        """Since counting began."""
        return PrefillSaved.of(self.totals)

    @property
    def hour_saved(self) -> PrefillSaved:
        """Over the last hour."""
        return PrefillSaved.of(self.hour)

    @property
    def hit_share(self) -> float | None:
        """Runs of the last hour that found their snapshot ready or on its way; None when there were no runs."""
        return _hit_share(self.hour)


@dataclass(frozen=True, slots=True)
class StoreState:
    """A snapshot store, and how full it is."""

    info: StoreInfo

    @property
    def used_share(self) -> float:
        """Of its budget, or of its file system if that is less; 0 when neither is known."""
        return self.info.used_bytes / self.info.limit_bytes if self.info.limit_bytes else 0.0

    @property
    def needed_bytes(self) -> int:
        """Bytes that cannot be evicted now, as far as they are listed."""
        return sum(item.size_bytes for item in self.info.snapshots if item.is_needed or item.is_pinned)


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it at one moment (`now_ms`: Redis' clock). `broker` is None when this user may not ask."""

    now_ms: int
    queues: tuple[QueueState, ...]
    workers: tuple[LiveWorker, ...]
    models: tuple[ModelStats, ...]
    stores: tuple[StoreState, ...]
    broker: BrokerState | None
    runs_open: int
    branches_open: int
    dead: int

    @property
    def all_models(self) -> ModelStats:
        """The sum over models."""
        starts = sorted({minute.start_ms for model in self.models for minute in model.minutes})
        minutes = (minute for model in self.models for minute in model.minutes)
        by_start: dict[int, Minute] = {}
        for minute in minutes:
            other = by_start.get(minute.start_ms)
            by_start[minute.start_ms] = _together(other, minute) if other else minute
        return ModelStats(
            model="",
            totals=reduce(Totals.__add__, (model.totals for model in self.models), NOTHING),
            hour=reduce(Totals.__add__, (model.hour for model in self.models), NOTHING),
            minutes=tuple(by_start[start] for start in starts),
        )

    def workers_of(self, role: str, model: str) -> list[LiveWorker]:
        """Live workers of a role and model."""
        return [live for live in self.workers if (live.info.role, live.info.model) == (role, model)]


async def read_overview(ledger: Ledger) -> Overview:
    """Read everything. Reading again with the same ledger is cheaper: it keeps what cannot change.

    Raises BrokerError.
    """
    models = await ledger.statistics.models()
    work = await ledger.statistics.work(models)
    totals = await ledger.statistics.totals(models)
    past = await ledger.statistics.past(models, work.now_ms)
    workers = await ledger.fleet.workers()
    stores = await ledger.stores.all()
    broker = await ledger.statistics.broker()
    return Overview(
        now_ms=work.now_ms,
        queues=work.queues,
        workers=tuple(workers),
        models=tuple(model_stats(model, totals[model], past[model], work.now_ms) for model in models),
        stores=tuple(StoreState(store) for store in stores),
        broker=broker,
        runs_open=work.runs_open,
        branches_open=work.branches_open,
        dead=work.dead,
    )


def model_stats(model: str, now: Totals, past: Mapping[int, Totals], now_ms: int) -> ModelStats:
    """The hour and its minutes from the counts now and at the start of past minutes (since the epoch)."""
    start = now_ms // MINUTE_MS - HOUR_MINUTES
    hour_ms = start * MINUTE_MS
    before = [at for at in past if at <= start]
    within = [at for at in past if at > start]
    known = {at * MINUTE_MS: past[at] for at in (*before[-1:], *within)}
    if not before and now.since_ms >= hour_ms:  # counted from nothing, within the hour
        known = {now.since_ms: NOTHING, **{at: totals for at, totals in known.items() if at > now.since_ms}}
    known[now_ms] = now
    times = sorted(known)
    minutes = tuple(
        Minute(begin, (end - begin) / 1000, known[end] - known[begin]) for begin, end in pairwise(times)
    )
    return ModelStats(model, now, now - known[times[0]], minutes)


def _together(one: Minute, two: Minute) -> Minute:
    return Minute(one.start_ms, max(one.length_s, two.length_s), one.totals + two.totals)


def _hit_share(totals: Totals) -> float | None:
    hits, misses = totals.counters["snapshot_hits"], totals.counters["snapshot_misses"]
    return hits / (hits + misses) if hits + misses else None
