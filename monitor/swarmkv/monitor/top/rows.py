"""An overview and a listing of runs as rows of the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from swarmkv.monitor.alerts import alerts
from swarmkv.monitor.overview import Overview, StoreState
from swarmkv.monitor.top.reading import AlertRow, QueueRow, Reading, RunRow, SnapshotRow, Totals, WorkerRow
from swarmkv.protocol.ledger import LiveWorker, QueueState, RunSummary


def reading_of(overview: Overview, runs: Sequence[RunSummary], num_runs: int) -> Reading:
    """The rows of one moment; ages are counted by Redis' clock, as all times are."""
    now_ms = overview.now_ms
    snapshots = (row for store in overview.stores for row in _snapshots(store, overview.workers, now_ms))
    found = alerts(overview)
    return Reading(
        taken_ms=now_ms,
        totals=_totals(overview, num_runs),
        alerts=tuple(AlertRow(item.code, item.severity, item.subject, item.message, item.remedy) for item in found),
        queues=tuple(map(_queue, overview.queues)),
        workers=tuple(_worker(live, now_ms) for live in overview.workers),
        runs=tuple(_run(run, now_ms) for run in runs),
        snapshots=tuple(snapshots),
    )


def _totals(overview: Overview, num_runs: int) -> Totals:
    saved = overview.all_models.saved
    speeds = [(live.info.role, live.info.tokens_per_s) for live in overview.workers]
    return Totals(
        decode_tokens_per_s=sum(speed for role, speed in speeds if role == "branch"),
        prefill_tokens_per_s=sum(speed for role, speed in speeds if role == "prefill"),
        saved_tokens=saved.tokens,
        saved_ms=saved.seconds * 1_000,
        saved_share=saved.share,
        store_bytes=sum(store.info.used_bytes for store in overview.stores),
        store_limit_bytes=sum(store.info.limit_bytes for store in overview.stores),
        runs=num_runs,
        runs_open=overview.runs_open,
        branches_open=overview.branches_open,
        dead=overview.dead,
    )


def _queue(queue: QueueState) -> QueueRow:
    return QueueRow(
        role=queue.role,
        model=queue.model,
        waiting=queue.waiting,
        running=queue.running,
        oldest_s=queue.oldest_age_s,
        deferred=queue.deferred,
    )


def _worker(live: LiveWorker, now_ms: int) -> WorkerRow:
    info = live.info
    is_telling = bool(info.version)  # a worker of an older version tells less
    return WorkerRow(
        id=info.id,
        role=info.role,
        model=info.model,
        state=info.state,
        host=info.host,
        pid=info.pid,
        slots=info.slots,
        slots_used=info.slots_used,
        cells=info.n_ctx,
        cells_used=info.cells_used if is_telling else None,
        residents=len(info.residents) if is_telling else None,
        tokens_per_s=info.tokens_per_s if is_telling else None,
        rss_bytes=info.rss_bytes or None,
        age_s=_since(info.started_ms, now_ms) if info.started_ms else None,
        beat_age_s=live.last_beat_age_s,
        device=info.device,
        version=info.version,
    )


def _run(run: RunSummary, now_ms: int) -> RunRow:
    age_s = _since(run.created_ms, now_ms)
    return RunRow(run.run_id, run.name, run.state, run.model, run.branches, run.open, age_s)


def _snapshots(store: StoreState, workers: Sequence[LiveWorker], now_ms: int) -> Iterator[SnapshotRow]:
    for snapshot in store.info.snapshots:
        yield SnapshotRow(
            id=snapshot.key,
            models=snapshot.models,
            documents=snapshot.documents,
            tokens=snapshot.tokens,
            size_bytes=snapshot.size_bytes,
            age_s=_since(snapshot.created_ms, now_ms),
            unused_s=_since(snapshot.used_ms, now_ms),
            hits=snapshot.hits,
            pinned=snapshot.is_pinned,
            needed=snapshot.is_needed,
            resident_in=sum(snapshot.key in live.info.residents for live in workers),
            store=f"{store.info.host}:{store.info.path}",
            problem=snapshot.problem,
        )


def _since(moment_ms: int, now_ms: int) -> float:
    return max(0.0, (now_ms - moment_ms) / 1_000)
