"""What branches say, on its way to Redis: text gathered by time, endings written in groups.

engine step ─▶ text(branch, ...)  ─┐
engine step ─▶ text(branch, ...)  ─┼─ every flush_s ─▶ one write per flush for all branches
branch ended ─▶ finish(outcome)   ─┘  at once ─▶ its text, then all endings of the moment in one script
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.events import BranchText, Event
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch
from swarmkv.workers import outage

_WAITING = "unwritten results wait for Redis"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Spoken:
    """Text of one attempt that is not yet written; `offset` characters were written before it."""

    branch: TakenBranch
    offset: int = 0
    pieces: list[str] = field(default_factory=list)


class Outbox:
    """One writer task per worker. Nothing is lost while Redis is away: it is written when Redis is back.

    Text that Redis refuses for good waits for the next flush; who asked for an ending that it refuses is told.
    """

    def __init__(self, ledger: Ledger, worker_id: str, *, flush_s: float) -> None:
        self._ledger = ledger
        self._worker_id = worker_id
        self._flush_s = flush_s
        self._spoken: dict[str, _Spoken] = {}
        self._outcomes: list[tuple[Outcome, asyncio.Future[bool]]] = []
        self._something = asyncio.Event()
        self._urgent = asyncio.Event()

    def text(self, branch: TakenBranch, piece: str) -> bool:
        """Add text of a branch; it is written with the next flush. Returns whether it is the attempt's first."""
        is_first = branch.job_id not in self._spoken
        spoken = self._spoken.setdefault(branch.job_id, _Spoken(branch))
        spoken.pieces.append(piece)
        self._something.set()
        return is_first

    async def finish(self, outcome: Outcome) -> bool:
        """Write a branch's ending behind its text; False if the attempt had lost its branch.

        Raises BrokerError when Redis refuses it and waiting does not help.
        """
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._outcomes.append((outcome, written))
        self._something.set()
        self._urgent.set()
        return await written

    def drop(self, job_id: str) -> None:
        """Forget unwritten text of an attempt that ended without an outcome."""
        self._spoken.pop(job_id, None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._something.wait()
            if not self._outcomes:
                await self._pause()
            self._something.clear()
            self._urgent.clear()
            await self._flush()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._flush_s):
                await self._urgent.wait()
        except TimeoutError:
            pass

    async def _flush(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        try:
            await outage.patiently(self._write_text, _WAITING)
        except BrokerError as exc:
            logger.warning("text is not written: %s", exc, extra={"action": "broker_refused"})
        if outcomes:
            await self._write_outcomes(outcomes)

    async def _write_outcomes(self, outcomes: list[tuple[Outcome, asyncio.Future[bool]]]) -> None:
        write = partial(self._ledger.jobs.finish, self._worker_id, [outcome for outcome, _ in outcomes])
        try:
            answers: Sequence[bool | BrokerError] = await outage.patiently(write, _WAITING)
        except BrokerError as exc:
            answers = [exc] * len(outcomes)
        for (outcome, written), answer in zip(outcomes, answers, strict=True):
            self._spoken.pop(outcome.branch.job_id, None)
            if written.done():
                continue
            if isinstance(answer, BrokerError):
                written.set_exception(answer)
            else:
                written.set_result(answer)

    async def _write_text(self) -> None:
        events: defaultdict[str, list[Event]] = defaultdict(list)
        written: list[tuple[_Spoken, int, str]] = []
        for spoken in self._spoken.values():
            text = "".join(spoken.pieces)
            if not text:
                continue
            branch = spoken.branch
            events[branch.run_id].append(
                BranchText(branch=branch.spec.name, attempt=branch.attempt, offset=spoken.offset, text=text)
            )
            written.append((spoken, len(spoken.pieces), text))
        if not events:
            return
        await self._ledger.jobs.emit(dict(events))
        for spoken, count, text in written:  # more may have been said while this was written
            del spoken.pieces[:count]
            spoken.offset += len(text)
