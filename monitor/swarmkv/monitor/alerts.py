"""What somebody should look at, in words, and what to do about it. Pure: an overview in, alerts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from swarmkv.monitor.overview import ModelStats, Overview, StoreState
from swarmkv.protocol.ledger import QueueState

Severity = Literal["critical", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")

OLD_QUEUE_S = 120.0  # far longer than a prefill of a common document takes
SILENT_S = 5.0  # over two heartbeats of the default length
FULL_SHARE = 0.9  # of a store
MEMORY_SHARE = 0.85  # of Redis' maxmemory
CRITICAL_MEMORY_SHARE = 0.95
MANY_FAILURES = 5  # branches of a model in an hour


@dataclass(frozen=True, slots=True)
class Alert:
    """`code` is stable, for tests and links; `subject` is the model, worker or store that it is about."""

    code: str
    severity: Severity
    subject: str
    message: str
    remedy: str


def alerts(overview: Overview) -> list[Alert]:
    """Everything that is wrong or soon will be, the worst first."""
    found = [alert for rule in _RULES for alert in rule(overview)]
    return sorted(found, key=lambda alert: SEVERITIES.index(alert.severity))


def _unserved_queues(overview: Overview) -> Iterator[Alert]:
    """Work that nobody does, or that waits for long."""
    for queue in overview.queues:
        if not queue.waiting:
            continue
        workers = overview.workers_of(queue.role, queue.model)
        if not workers:
            yield _no_worker(queue)
        elif all(live.info.state != "running" for live in workers):
            yield Alert(
                "workers_paused",
                "critical",
                queue.model,
                f"No {queue.role} worker of model {queue.model!r} takes jobs: all {len(workers)} are paused or "
                f"draining; {_waiting(queue)}.",
                "Resume one of them, or start another.",
            )
        elif (queue.oldest_age_s or 0) > OLD_QUEUE_S:
            slots = sum(live.info.slots for live in workers)
            yield Alert(
                "queue_old",
                "warning",
                queue.model,
                f"Work of {queue.role} workers of model {queue.model!r} piles up: {_waiting(queue)}; "
                f"{queue.running:,} run in {slots:,} slots.",
                "Start more workers for this model"
                + (", or raise SWARMKV_SLOTS if cells are free." if queue.role == "branch" else "."),
            )


def _missing_roles(overview: Overview) -> Iterator[Alert]:
    """Half of a pair: nothing waits yet, and the next new document, or all branches, would."""
    for queue in overview.queues:
        other = "branch" if queue.role == "prefill" else "prefill"
        is_alone = not overview.workers_of(queue.role, queue.model)
        if is_alone and not queue.waiting and overview.workers_of(other, queue.model):
            yield Alert(
                "role_missing",
                "notice",
                queue.model,
                f"Model {queue.model!r} has {other} workers and no {queue.role} worker: what needs one will wait.",
                _start(queue),
            )


def _no_worker(queue: QueueState) -> Alert:
    return Alert(
        "no_worker",
        "critical",
        queue.model,
        f"No {queue.role} worker serves model {queue.model!r}; {_waiting(queue)}.",
        _start(queue),
    )


def _start(queue: QueueState) -> str:
    return (
        f"Start one: swarmkv worker {queue.role} --model {queue.model}=PATH. `swarmkv workers` lists those alive."
    )


def _waiting(queue: QueueState) -> str:
    jobs = "1 job waits" if queue.waiting == 1 else f"{queue.waiting:,} jobs wait"
    return jobs if queue.oldest_age_s is None else f"{jobs}, the oldest for {_duration(queue.oldest_age_s)}"


def _unlike_workers(overview: Overview) -> Iterator[Alert]:
    """Workers of one model that cannot use each other's snapshots."""
    for model in sorted({live.info.model for live in overview.workers}):
        prefill, branch = overview.workers_of("prefill", model), overview.workers_of("branch", model)
        if _apart({live.info.store for live in prefill}, {live.info.store for live in branch}):
            yield Alert(
                "stores_apart",
                "critical",
                model,
                f"Prefill and branch workers of model {model!r} see different snapshot stores: branches will not "
                "find what is prefilled for them.",
                "Give them one SWARMKV_STORE_DIR; in containers, mount the same volume there.",
            )
        if _apart({live.info.identity for live in prefill}, {live.info.identity for live in branch}):
            yield Alert(
                "settings_apart",
                "critical",
                model,
                f"Prefill and branch workers of model {model!r} differ in model file, build or KV settings: "
                "snapshots are refused.",
                "Start them with the same model and settings; the worker log names the fields that differ.",
            )


def _apart(some: set[str], others: set[str]) -> bool:
    """Both say something, and nothing that they have in common."""
    some, others = some - {""}, others - {""}
    return bool(some and others and not some & others)


def _silent_workers(overview: Overview) -> Iterator[Alert]:
    for live in overview.workers:
        if live.last_beat_age_s > SILENT_S:
            yield Alert(
                "worker_silent",
                "warning",
                live.info.id,
                f"Worker {live.info.id} has said nothing for {_duration(live.last_beat_age_s)}.",
                f"Is process {live.info.pid} on {live.info.host} alive and not stopped? Its jobs are given to "
                "others when its lease runs out.",
            )


def _crashes(overview: Overview) -> Iterator[Alert]:
    for model in overview.models:
        if count := model.hour.counters["crashes"]:
            jobs = "1 job" if count == 1 else f"{count:,} jobs"
            yield Alert(
                "crashes",
                "warning",
                model.model,
                f"Workers of model {model.model!r} died over {jobs} in the last hour.",
                "Look into their logs; a host that is short of memory kills them (`dmesg`).",
            )


def _dead_letters(overview: Overview) -> Iterator[Alert]:
    if overview.dead:
        were = "1 branch was" if overview.dead == 1 else f"{overview.dead:,} branches were"
        yield Alert(
            "dead_letters",
            "warning",
            "",
            f"{were} given up and moved to the dead-letter list.",
            "`swarmkv dead ls` says why; `swarmkv dead retry` tries them again, `swarmkv dead drop` forgets them.",
        )


def _full_stores(overview: Overview) -> Iterator[Alert]:
    """A store that is full of what it may evict is as it should be, unless what it evicted is missed."""
    evictions = overview.all_models.hour.counters["evictions"]
    for store in overview.stores:
        needed_share = store.needed_bytes / store.info.limit_bytes if store.info.limit_bytes else 0.0
        if needed_share >= FULL_SHARE:
            yield _store_alert(
                store,
                "warning",
                f"The snapshot store {store.info.path} on {store.info.host} is full to {needed_share:.0%} of "
                "snapshots that runs need or that are pinned: the next prefill may have to wait.",
            )
        elif store.used_share >= FULL_SHARE and evictions:
            yield _store_alert(
                store,
                "notice",
                f"The snapshot store {store.info.path} on {store.info.host} is full to {store.used_share:.0%}; "
                f"{evictions:,} snapshots made room in the last hour, and are prefilled again when asked for.",
            )


def _store_alert(store: StoreState, severity: Severity, message: str) -> Alert:
    remedy = "Raise SWARMKV_STORE_BUDGET_BYTES, on a file system that has the room; unpin what is no longer used."
    return Alert("store_full", severity, store.info.id, message, remedy)


def _broker(overview: Overview) -> Iterator[Alert]:
    broker = overview.broker
    if broker is None:
        return
    if broker.policy not in ("noeviction", ""):
        yield Alert(
            "eviction_policy",
            "critical",
            "redis",
            f"Redis drops keys when memory is short (maxmemory-policy {broker.policy}): accepted work may vanish.",
            "Run: redis-cli CONFIG SET maxmemory-policy noeviction",
        )
    share = broker.used_bytes / broker.max_bytes if broker.max_bytes else 0.0
    if share >= MEMORY_SHARE:
        yield Alert(
            "redis_memory",
            "critical" if share >= CRITICAL_MEMORY_SHARE else "warning",
            "redis",
            f"Redis uses {share:.0%} of its maxmemory; when it is full, new runs are refused.",
            "Raise maxmemory, or lower SWARMKV_RESULT_TTL_S so that results go sooner.",
        )


def _failures(overview: Overview) -> Iterator[Alert]:
    """Most branches of an hour failed: something is wrong with the whole, not with a branch."""
    for model in overview.models:
        failed, done = _ended(model)
        if failed >= MANY_FAILURES and failed > done:
            yield Alert(
                "failures",
                "warning",
                model.model,
                f"{failed:,} of {failed + done:,} branches of model {model.model!r} failed in the last hour.",
                "`swarmkv runs` lists the runs; `swarmkv show RUN` says why its branches failed, and what to do.",
            )


def _ended(model: ModelStats) -> tuple[int, int]:
    return model.hour.counters["branches_failed"], model.hour.counters["branches_done"]


def _duration(seconds: float) -> str:
    """For people: 4 s, 3 min, 2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


_RULES: tuple[Callable[[Overview], Iterable[Alert]], ...] = (
    _unserved_queues,
    _missing_roles,
    _unlike_workers,
    _broker,
    _full_stores,
    _silent_workers,
    _crashes,
    _failures,
    _dead_letters,
)
