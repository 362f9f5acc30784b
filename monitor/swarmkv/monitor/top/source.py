"""Readings from Redis, and actions through the ledger."""

from __future__ import annotations

import time

from arq.connections import ArqRedis

from swarmkv.monitor.top.reading import QueueRow, Reading, RunRow, Totals, WorkerRow
from swarmkv.producer import RunHandle, RunReport
from swarmkv.producer.progress import Progress
from swarmkv.producer.view import KEPT_CHARS
from swarmkv.protocol.ledger import Ledger, LiveWorker, RunSummary
from swarmkv.protocol.settings import Settings

MAX_RUNS = 1_000  # the newest; a reading of more would take longer than the interval
_ROLES = ("prefill", "branch")


class LedgerSource:
    """Reads and acts through one Redis client, which stays the caller's to close."""

    can_command = False

    def __init__(self, redis: ArqRedis, settings: Settings, address: str) -> None:
        self.address = address
        self._settings = settings
        self._ledger = Ledger(redis, max_events=settings.max_events)
        self._progress: tuple[str, Progress] | None = None

    async def read(self) -> Reading:
        """Everything, now. Raises BrokerError."""
        ledger = self._ledger
        workers = await ledger.fleet.workers()
        runs = await ledger.runs.listing(MAX_RUNS)
        dead = await ledger.recovery.dead()
        queues = [
            await self._queue(role, model, workers)
            for model in await ledger.fleet.known_models()
            for role in _ROLES
        ]
        now_ms = time.time_ns() // 1_000_000
        return Reading(
            taken_ms=now_ms,
            totals=Totals(dead=len(dead)),
            queues=tuple(queues),
            workers=tuple(_worker(live, now_ms) for live in workers),
            runs=tuple(_run(summary, now_ms) for summary in runs),
            num_runs=len(runs),
        )

    async def watch(self, run_id: str) -> RunReport:
        """A run with its branches. Raises RunNotFound, ProtocolError, BrokerError."""
        report = await self._ledger.runs.report(run_id)
        if self._progress is None or self._progress[0] != run_id:
            self._progress = run_id, Progress(self._ledger, report, kept_chars=KEPT_CHARS)
        return await self._progress[1].catch_up(report)

    async def cancel(self, run_id: str) -> str:
        """Raises RunNotFound, BrokerError."""
        was_open = await self._handle(run_id).cancel()
        return f"Run {run_id} is cancelled." if was_open else f"Run {run_id} had already ended."

    async def retry(self, run_id: str) -> str:
        """Raises RunNotFound, DocumentGone, Overloaded, BrokerError."""
        names = await self._handle(run_id).retry(only_failed=True)
        if not names:
            return f"Run {run_id} has no failed branch: there is nothing to retry."
        return f"{len(names):,} failed {'branch is' if len(names) == 1 else 'branches are'} queued again."

    async def command(self, worker_id: str, kind: str) -> str:
        """Workers of this version take no commands."""
        raise NotImplementedError

    def _handle(self, run_id: str) -> RunHandle:
        return RunHandle(self._ledger, run_id, self._settings)

    async def _queue(self, role: str, model: str, workers: list[LiveWorker]) -> QueueRow:
        running = sum(
            live.info.slots_used for live in workers if (live.info.role, live.info.model) == (role, model)
        )
        return QueueRow(role, model, await self._ledger.fleet.queue_depth(role, model), running)


def _worker(live: LiveWorker, now_ms: int) -> WorkerRow:
    info = live.info
    return WorkerRow(
        id=info.id,
        role=info.role,
        model=info.model,
        state="running",
        host=info.host,
        pid=info.pid,
        slots=info.slots,
        slots_used=info.slots_used,
        cells=info.n_ctx,
        cells_used=None,
        residents=None,
        tokens_per_s=None,
        rss_bytes=None,
        age_s=(now_ms - info.started_ms) / 1_000 if info.started_ms else None,
        beat_age_s=live.last_beat_age_s,
    )


def _run(summary: RunSummary, now_ms: int) -> RunRow:
    return RunRow(
        id=summary.run_id,
        name=summary.name,
        state=summary.state,
        model=summary.model,
        branches=summary.branches,
        open=summary.open,
        age_s=max(0.0, (now_ms - summary.created_ms) / 1_000),
    )
