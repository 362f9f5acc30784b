"""What branches say, on its way to Redis: text gathered by time, endings written in groups.

engine step ─▶ text(branch, ...)  ─┐
engine step ─▶ text(branch, ...)  ─┼─ every flush_s ─▶ one write per flush for all branches
branch ended ─▶ finish(outcome)   ─┘  at once ─▶ its text, then all endings of the moment in one script
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.events import BranchText, Event
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch
from swarmkv.workers import outage

RETRY_S = 0.5


@dataclass(slots=True)
class _Spoken:
    """Text of one attempt that is not yet written; `offset` characters were written before it."""

    branch: TakenBranch
    offset: int = 0
    pieces: list[str] = field(default_factory=list)


class Outbox:
    """One writer task per worker. Nothing is lost while Redis is away: it is written when Redis is back."""

    def __init__(self, ledger: Ledger, worker_id: str, *, flush_s: float) -> None:
        self._ledger = ledger
        self._worker_id = worker_id
        self._flush_s = flush_s
        self._spoken: dict[str, _Spoken] = {}
        self._outcomes: list[tuple[Outcome, asyncio.Future[bool]]] = []
        self._something = asyncio.Event()
        self._urgent = asyncio.Event()

    def text(self, branch: TakenBranch, piece: str) -> None:
        """Add text of a branch; it is written with the next flush."""
        spoken = self._spoken.setdefault(branch.job_id, _Spoken(branch))
        spoken.pieces.append(piece)
        self._something.set()

    async def finish(self, outcome: Outcome) -> bool:
        """Write a branch's ending behind its text; False if the attempt had lost its branch."""
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
        await self._persist(self._write_text)
        if not outcomes:
            return
        answers: list[bool] = []

        async def write_outcomes() -> None:
            answers[:] = await self._ledger.jobs.finish(self._worker_id, [item for item, _ in outcomes])

        await self._persist(write_outcomes)
        for (outcome, written), answer in zip(outcomes, answers, strict=True):
            self._spoken.pop(outcome.branch.job_id, None)
            if not written.done():
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

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        is_told = False
        while True:
            try:
                await write()
                return
            except BrokerError as exc:
                outage.tell("unwritten results wait for Redis", exc, is_told=is_told)
                is_told = True
                await asyncio.sleep(RETRY_S * (1 + random.random()))  # noqa: S311 - spread, not secret
