"""Readings from Redis, and actions through the ledger."""

from __future__ import annotations

from arq.connections import ArqRedis

from swarmkv.monitor.overview import read_overview
from swarmkv.monitor.top.reading import Reading
from swarmkv.monitor.top.rows import reading_of
from swarmkv.producer import RunHandle, RunReport
from swarmkv.producer.progress import Progress
from swarmkv.producer.view import KEPT_CHARS
from swarmkv.protocol.commands import SNAPSHOT_COMMANDS, Command, CommandKind
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings

MAX_RUNS = 1_000  # the newest; reading more would take longer than the interval


class LedgerSource:
    """Reads and acts through one Redis client, which stays the caller's to close.

    `address` is what is shown of it, `by` who is remembered to have given commands.
    """

    def __init__(self, redis: ArqRedis, settings: Settings, *, address: str, by: str) -> None:
        self.address = address
        self._by = by
        self._settings = settings
        self._ledger = Ledger(redis, max_events=settings.max_events)
        self._progress: tuple[str, Progress] | None = None

    async def read(self) -> Reading:
        """Everything, now. Raises BrokerError."""
        overview = await read_overview(self._ledger)
        runs = await self._ledger.runs.listing(MAX_RUNS)
        return reading_of(overview, runs, await self._ledger.runs.count())

    async def watch(self, run_id: str) -> RunReport:
        """A run with the end of what its branches say. Raises RunNotFound, ProtocolError, BrokerError."""
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

    async def command(self, kind: CommandKind, target: str) -> str:
        """Raises CommandRefused, CommandUnanswered, WorkerNotFound, BrokerError."""
        is_about_snapshot = kind in SNAPSHOT_COMMANDS
        command = Command(kind=kind, by=self._by, snapshot=target if is_about_snapshot else "")
        answer = await self._ledger.commands.send("store" if is_about_snapshot else target, command)
        answer.check()
        return answer.message

    def _handle(self, run_id: str) -> RunHandle:
        return RunHandle(self._ledger, run_id, self._settings)
