"""An overview in Prometheus' text format: base units, bounded labels, no registry that outlives an answer.

Labels: `model` (at most as many as the ledger looks at), `role`, and for gauges of live workers `worker`, of stores
`store`. Never a run, branch, document or snapshot.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from swarmkv.monitor.overview import ModelStats, Overview, read_overview
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.messages import WorkerState
from swarmkv.protocol.statistics import BOUNDS_MS, Counter, Histogram, Stage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STAGES: dict[Stage, tuple[str, str]] = {
    "queue": ("swarmkv_branch_queue_seconds", "Time from ready to job start, of branches that are done."),
    "prefill": ("swarmkv_prefill_seconds", "Decoding time of a document, of each prefill."),
    "restore": (
        "swarmkv_branch_restore_seconds",
        "Time to restore a snapshot into the KV cache, of branches that did not find it resident.",
    ),
    "ttft": ("swarmkv_branch_time_to_first_token_seconds", "Time from job start to the first token."),
    "inter_token": ("swarmkv_branch_inter_token_seconds", "Mean time between two tokens, one value a branch."),
    "decode": ("swarmkv_branch_decode_seconds", "Time from the first token to the last."),
    "e2e": ("swarmkv_branch_end_to_end_seconds", "Time from accepted to done."),
}
_COUNTERS: dict[Counter, tuple[str, str]] = {
    "runs_submitted": ("swarmkv_runs_submitted_total", "Runs that were accepted."),
    "prefills": ("swarmkv_prefills_total", "Documents that were prefilled."),
    "snapshot_hits": (
        "swarmkv_snapshot_hits_total",
        "Runs that found their snapshot ready, or its prefill under way.",
    ),
    "snapshot_misses": ("swarmkv_snapshot_misses_total", "Runs that had to ask for a prefill."),
    "evictions": ("swarmkv_snapshot_evictions_total", "Snapshots that left the store to make room."),
    "rebuilds": ("swarmkv_snapshot_rebuilds_total", "Snapshots that could not be used and were asked for anew."),
    "retries": ("swarmkv_branch_retries_total", "Attempts at branches but the first ones."),
    "crashes": ("swarmkv_job_crashes_total", "Jobs whose worker died over them."),
    "dead": ("swarmkv_branches_dead_total", "Branches that were given up and put on the dead-letter list."),
}
_RUN_STATES: dict[str, Counter] = {
    "done": "runs_done",
    "completed_with_errors": "runs_completed_with_errors",
    "failed": "runs_failed",
    "cancelled": "runs_cancelled",
}
_BRANCH_STATES: dict[str, Counter] = {
    "done": "branches_done",
    "failed": "branches_failed",
    "cancelled": "branches_cancelled",
}
_TOKEN_KINDS: dict[str, Counter] = {
    "reused": "tokens_reused",
    "recomputed": "tokens_recomputed",
    "prompt": "tokens_prompt",
    "generated": "tokens_generated",
    "prefilled": "tokens_prefilled",
}


async def answer_metrics(ledger: Ledger) -> bytes:
    """What `/metrics` answers: all of it, or that Redis is away, which is worth an alert and no failed scrape."""
    try:
        overview = await read_overview(ledger)
    except BrokerError:
        return _text(_about(redis_up=False))
    return await asyncio.to_thread(render_metrics, overview)  # with hundreds of models it takes a while


def render_metrics(overview: Overview) -> bytes:
    """The overview in Prometheus' text format, of type CONTENT_TYPE."""
    return _text(_families(overview))


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families))
    return generate_latest(registry)


class _Once(Collector):
    """What was made for one answer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    for values, number in rows:
        family.add_metric(tuple(values), number)
    return family


def _counter(name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=tuple(labels))
    for values, number in rows:
        family.add_metric(tuple(values), number)
    return family


def _families(overview: Overview) -> Iterator[Metric]:
    yield from _about(redis_up=True)
    yield from _queues(overview)
    yield from _models(overview.models)
    yield from _workers(overview)
    yield from _stores(overview)
    yield from _redis(overview)


def _about(*, redis_up: bool) -> Iterator[Metric]:
    version = importlib.metadata.version("swarmkv")
    yield _gauge("swarmkv_build_info", "The version that answers; always 1.", ("version",), [((version,), 1)])
    yield _gauge("swarmkv_redis_up", "Whether Redis answers; 0: nothing else is known.", (), [((), int(redis_up))])


def _queues(overview: Overview) -> Iterator[Metric]:
    labels, queues = ("role", "model"), overview.queues
    yield _gauge(
        "swarmkv_queue_waiting",
        "Jobs that could start now and wait for a worker, without running and deferred ones: scale by this.",
        labels,
        (((queue.role, queue.model), queue.waiting) for queue in queues),
    )
    yield _gauge(
        "swarmkv_queue_running",
        "Jobs that are leased to a worker.",
        labels,
        (((queue.role, queue.model), queue.running) for queue in queues),
    )
    yield _gauge(
        "swarmkv_queue_deferred",
        "Jobs that are to start later, such as those that wait for room.",
        labels,
        (((queue.role, queue.model), queue.deferred) for queue in queues),
    )
    yield _gauge(
        "swarmkv_queue_oldest_age_seconds",
        "How long the oldest waiting job has waited; 0 when none waits.",
        labels,
        (((queue.role, queue.model), queue.oldest_age_s or 0) for queue in queues),
    )
    yield _gauge("swarmkv_runs_open", "Runs that have not ended.", (), [((), overview.runs_open)])
    yield _gauge("swarmkv_branches_open", "Branches that have not ended.", (), [((), overview.branches_open)])
    yield _gauge("swarmkv_dead_letters", "Entries of the dead-letter list.", (), [((), overview.dead)])


def _models(models: tuple[ModelStats, ...]) -> Iterator[Metric]:
    for counter, (name, text) in _COUNTERS.items():
        yield _counter(name, text, ("model",), (((one.model,), one.totals.counters[counter]) for one in models))
    yield _by("swarmkv_runs_ended_total", "Runs that ended, by state.", "state", _RUN_STATES, models)
    yield _by("swarmkv_branches_ended_total", "Branches that ended, by state.", "state", _BRANCH_STATES, models)
    yield _by(
        "swarmkv_tokens_total",
        "Tokens: of prefixes taken from snapshots or decoded again, of prompts, of answers, of prefills.",
        "kind",
        _TOKEN_KINDS,
        models,
    )
    yield _counter(
        "swarmkv_prefill_saved_seconds_total",
        "Prefill that branches did not need, less what was prefilled for them.",
        ("model",),
        (((one.model,), one.totals.counters["prefill_saved_ms"] / 1000) for one in models),
    )
    for stage, (name, text) in _STAGES.items():
        yield _histogram(name, text, ((one.model, one.totals.stages[stage]) for one in models))


def _by(name: str, text: str, label: str, by: dict[str, Counter], models: tuple[ModelStats, ...]) -> Metric:
    rows = (((one.model, value), one.totals.counters[field]) for one in models for value, field in by.items())
    return _counter(name, text, ("model", label), rows)


def _histogram(name: str, text: str, rows: Iterable[tuple[str, Histogram]]) -> Metric:
    bounds = [*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf"]
    family = HistogramMetricFamily(name, text, labels=("model",))
    for model, times in rows:
        buckets = list(zip(bounds, map(float, accumulate(times.counts)), strict=True))
        family.add_metric((model,), buckets, times.sum_ms / 1000)
    return family


def _workers(overview: Overview) -> Iterator[Metric]:
    yield _gauge(
        "swarmkv_workers",
        "Live workers.",
        ("role", "model"),
        (
            ((queue.role, queue.model), len(overview.workers_of(queue.role, queue.model)))
            for queue in overview.queues
        ),
    )
    labels = ("worker", "role", "model")
    live = [((w.info.id, w.info.role, w.info.model), w) for w in overview.workers]
    yield _gauge("swarmkv_worker_up", "A live worker; always 1.", labels, ((who, 1) for who, _ in live))
    about = ((*who, w.info.host, w.info.device, w.info.version) for who, w in live)
    more = ("host", "device", "version")
    yield _gauge(
        "swarmkv_worker_info", "What a live worker is; always 1.", (*labels, *more), ((row, 1) for row in about)
    )
    yield _gauge(
        "swarmkv_worker_state",
        "1 for the state that a live worker is in.",
        (*labels, "state"),
        (((*who, state), int(w.info.state == state)) for who, w in live for state in get_args(WorkerState)),
    )
    for name, text, rows in (
        ("slots", "Jobs that a worker runs at once.", ((who, w.info.slots) for who, w in live)),
        ("slots_used", "Jobs that a worker runs now.", ((who, w.info.slots_used) for who, w in live)),
        ("cells", "KV cells of a worker's context.", ((who, w.info.n_ctx) for who, w in live)),
        ("cells_used", "KV cells that are held or reserved.", ((who, w.info.cells_used) for who, w in live)),
        ("residents", "Snapshots in a worker's KV cache.", ((who, len(w.info.residents)) for who, w in live)),
        ("memory_bytes", "Resident memory of a worker.", ((who, w.info.rss_bytes) for who, w in live)),
        ("beat_age_seconds", "Time since the last heartbeat.", ((who, w.last_beat_age_s) for who, w in live)),
        ("start_time_seconds", "When a worker started.", ((who, w.info.started_ms / 1000) for who, w in live)),
    ):
        yield _gauge(f"swarmkv_worker_{name}", text, labels, rows)


def _stores(overview: Overview) -> Iterator[Metric]:
    labels = ("store", "path")
    stores = [((one.info.id, one.info.path), one) for one in overview.stores]
    for name, text, rows in (
        ("bytes", "Bytes that snapshots take.", ((which, one.info.used_bytes) for which, one in stores)),
        (
            "limit_bytes",
            "The store's budget, or what its file system has if that is less.",
            ((which, one.info.limit_bytes) for which, one in stores),
        ),
        (
            "needed_bytes",
            "Bytes of snapshots that must not be evicted now: runs need them, or they are pinned.",
            ((which, one.needed_bytes) for which, one in stores),
        ),
        ("snapshots", "Snapshots in the store.", ((which, one.info.num_snapshots) for which, one in stores)),
    ):
        yield _gauge(f"swarmkv_store_{name}", text, labels, rows)


def _redis(overview: Overview) -> Iterator[Metric]:
    broker = overview.broker
    used = [] if broker is None else [((), broker.used_bytes)]
    limit = [] if broker is None else [((), broker.max_bytes)]
    yield _gauge("swarmkv_redis_memory_bytes", "Memory that Redis uses.", (), used)
    yield _gauge("swarmkv_redis_memory_limit_bytes", "Most memory of Redis; 0: no limit.", (), limit)
