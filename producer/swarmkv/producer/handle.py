"""A submitted run, as its producer or any other process sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from swarmkv.producer.progress import Progress
from swarmkv.producer.validate import checked_deadline_ms
from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.errors import BrokerError, BrokerForbidden, InvalidBranch, RunNotFinished, RunNotFound
from swarmkv.protocol.events import Event, RunDone, RunWarning
from swarmkv.protocol.ledger import Ledger, Limits
from swarmkv.protocol.messages import RunReport
from swarmkv.protocol.settings import Settings

BLOCK_MS = 1_000  # one blocking read; far below the socket's timeout
OUTAGE_S = 60.0  # how long a follower waits for a Redis that went away
Answer = TypeVar("Answer")


class RunHandle:
    """Follow, collect, cancel or retry one run. Handles are cheap: open as many as you like, in any process."""

    def __init__(
        self, ledger: Ledger, run_id: str, settings: Settings, warnings: tuple[RunWarning, ...] = ()
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self.id = run_id
        self.warnings = warnings

    async def report(self) -> RunReport:
        """The run as it is now, finished or not. Raises RunNotFound, BrokerError."""
        await self._mend()
        return await self._ledger.runs.report(self.id)

    async def so_far(self) -> RunReport:
        """As `report`, with what running branches have said until now as their text.

        Raises RunNotFound, ProtocolError, BrokerError.
        """
        report = await self.report()
        return await Progress(self._ledger, report).catch_up(report)

    async def results(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the run's end and return its report: branches by name, in order of submission.

        A failed branch is a report with its error, never an exception. Rides out a restart of Redis. Raises
        RunNotFinished when `timeout_s` passes first, RunNotFound, BrokerError.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s) as limit:
                # Looked at here, too: before Python 3.12 a cancellation can get lost in redis-py's wait_for.
                while not await self._patiently(self._is_done) and not limit.expired():
                    pass
        if limit.expired():
            raise RunNotFinished(
                f"Run {self.id} has not ended within {timeout_s:g} s.",
                hint=f"Try `swarmkv results {self.id}`.",
            )
        return await self._patiently(self.report)

    async def events(self) -> AsyncIterator[Event]:
        """Every event of the run from its beginning, live, ending with RunDone.

        A BranchRestarted voids the text of earlier attempts. Rides out a restart of Redis. Raises RunNotFound,
        BrokerError.
        """
        read, after, end = self._ledger.runs.read_events, "0", None
        while True:
            after, events = await self._patiently(partial(read, self.id, after, BLOCK_MS if end is None else 1))
            for event in events:
                end = event if isinstance(event, RunDone) else None
                if end is None:
                    yield event
            if not events:  # a run that was tried again has ended before: its end is the one that nothing follows
                report = await self._patiently(self.report)
                if report.is_finished:  # its end may have been trimmed from the bounded stream
                    yield end or RunDone(state=report.state, error=report.error)
                    return
                end = None

    async def cancel(self, *branches: str) -> bool:
        """End every open branch as cancelled, or those of these names; the others go on.

        False if nothing of it was open. Raises RunNotFound, InvalidBranch for a name that the run does not have,
        BrokerError.
        """
        ended = await self._ledger.runs.cancel(self.id, branches)
        if branches and not ended:
            await self._check_names(branches)
        return ended is not None and (bool(ended) or not branches)

    async def _check_names(self, branches: Sequence[str]) -> None:
        known = [branch.name for branch in (await self._ledger.runs.report(self.id)).branches]
        if unknown := [name for name in branches if name not in known]:
            raise InvalidBranch(
                f"Run {self.id} has no branch {unknown[0]!r}.", hint=f"`swarmkv show {self.id}` lists them."
            )

    async def retry(
        self, *, only_failed: bool = False, branches: Sequence[str] = (), deadline_s: float | None = None
    ) -> tuple[str, ...]:
        """Queue failed branches again, and cancelled ones unless `only_failed`; the rest keep their results.

        Each is a new attempt. `branches` chooses some by name. A run that had ended is open again: for `deadline_s`
        from now, or as long as it was given before. Returns the names of what was queued, in order: none if there
        was nothing to try again. Raises RunNotFound, DocumentGone, Overloaded, InvalidInput, BrokerError.
        """
        names = await self._ledger.recovery.retry(
            self.id,
            ("failed",) if only_failed else ("failed", "cancelled"),
            names=branches,
            deadline_ms=0 if deadline_s is None else checked_deadline_ms(deadline_s),
            limits=Limits.of(self._settings),
        )
        return tuple(names)

    async def _is_done(self) -> bool:
        """Waits a moment for it. Raises RunNotFound."""
        if await self._ledger.runs.wait_done(self.id, BLOCK_MS):
            return True
        if not await self._ledger.runs.exists(self.id):
            raise RunNotFound(f"There is no run {self.id!r}.")
        await self._mend()
        return False

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call until Redis answers. Raises BrokerError when that takes OUTAGE_S, or waiting cannot help."""
        end_s, backoff = time.monotonic() + OUTAGE_S, Backoff()
        while True:
            try:
                return await call()
            except BrokerError as exc:
                if not exc.is_passing or time.monotonic() >= end_s:
                    raise
            await backoff.pause()

    async def _mend(self) -> None:
        # With no worker alive nobody else would notice that a deadline has passed.
        # Who may only read leaves that to others.
        with suppress(BrokerForbidden):
            await self._ledger.fleet.sweep(
                max_solo_crashes=self._settings.max_solo_crashes, lease_ms=self._settings.lease_ms
            )
