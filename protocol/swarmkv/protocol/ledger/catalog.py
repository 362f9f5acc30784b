"""All runs at a glance, for searching: one line each, kept in the reader's memory.

Runs that have ended do not change, so only new and open ones are read again: ten thousand runs cost a moment at
the first look, and next to nothing after that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.messages import FINAL_RUN_STATES

MAX_ROWS = 100_000  # older runs are not searched
CHUNK = 1_000  # runs that are read in one round trip
FULL_S = 30.0  # time between looks at the whole index: runs that expired leave then
SHARE = 0.05  # of its time that a reader spends on reading again
OPEN_STATES = frozenset({"queued", "prefilling", "running"})
STATE_FILTERS: dict[str, frozenset[str]] = {
    "open": OPEN_STATES,
    "done": frozenset({"done"}),
    "errors": frozenset({"failed", "completed_with_errors"}),
    "cancelled": frozenset({"cancelled"}),
}
_FIELDS = (
    "name",
    "state",
    "model",
    "document_name",
    "branches",
    "open",
    "done",
    "failed",
    "created_ms",
    "finished_ms",
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in a list; times are milliseconds of Redis' clock, `finished_ms` is 0 until it has ended."""

    run_id: str
    name: str
    state: str
    model: str
    document_name: str
    branches: int
    open: int
    done: int
    failed: int
    created_ms: int
    finished_ms: int

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_RUN_STATES


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What is looked for. `text`: part of an id, a name or a document's name; `state`: one of STATE_FILTERS."""

    text: str = ""
    state: str = ""
    model: str = ""
    since_ms: int = 0

    def matches(self, row: RunRow) -> bool:
        """Is it one of those that are looked for?"""
        if row.created_ms < self.since_ms or (self.model and row.model != self.model):
            return False
        if self.state and row.state not in STATE_FILTERS.get(self.state, frozenset()):
            return False
        wanted = self.text.casefold()
        return not wanted or any(wanted in text.casefold() for text in (row.run_id, row.name, row.document_name))


class RunCatalog:
    """The lines of all runs that Redis keeps, the newest first, as fresh as `refresh` made them."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._rows: dict[str, RunRow] = {}
        self._newest_first: list[RunRow] = []
        self._full_at_s = self._next_at_s = float("-inf")

    @property
    def rows(self) -> Sequence[RunRow]:
        return self._newest_first

    async def refresh(self) -> None:
        """Read what may have changed; does nothing when that was done a moment ago. Raises BrokerError."""
        started_s = time.monotonic()
        if started_s < self._next_at_s:
            return
        if started_s - self._full_at_s > FULL_S:
            await self._read_all()
            self._full_at_s = started_s
        else:
            await self._read_changes()
        self._newest_first = sorted(self._rows.values(), key=lambda row: (row.created_ms, row.run_id), reverse=True)
        ended_s = time.monotonic()
        self._next_at_s = ended_s + max(0.5, (ended_s - started_s) / SHARE)

    async def search(self, query: RunQuery, *, offset: int, limit: int) -> tuple[int, list[RunRow]]:
        """How many runs match, and some of them, read anew. Raises BrokerError."""
        await self.refresh()
        found = [row for row in self._newest_first if query.matches(row)]
        shown = found[offset : offset + limit]
        await self._read([row.run_id for row in shown])
        return len(found), [fresh for row in shown if (fresh := self._rows.get(row.run_id)) is not None]

    async def _read_all(self) -> None:
        with broker_errors():
            ids = _texts(await self._redis.zrevrange(keys.RUNS, 0, MAX_ROWS - 1))
            active = _texts(await self._redis.zrange(keys.ACTIVE, 0, MAX_ROWS - 1))
        self._rows = {run: row for run in ids if (row := self._rows.get(run)) is not None}
        again = set(active)
        await self._read([run for run in ids if run in again or not self._is_settled(run)])

    async def _read_changes(self) -> None:
        newest_ms = self._newest_first[0].created_ms if self._newest_first else 0
        with broker_errors():
            fresh = _texts(await self._redis.zrangebyscore(keys.RUNS, newest_ms, "+inf"))
            active = _texts(await self._redis.zrange(keys.ACTIVE, 0, MAX_ROWS - 1))
        was_open = [run for run, row in self._rows.items() if not row.is_finished]
        await self._read(list(dict.fromkeys((*fresh, *active, *was_open))))

    def _is_settled(self, run: str) -> bool:
        row = self._rows.get(run)
        return row is not None and row.is_finished

    async def _read(self, ids: list[str]) -> None:
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            with broker_errors():
                pipe = self._redis.pipeline(transaction=False)
                for run in chunk:
                    pipe.hmget(keys.key("run", run=run), *_FIELDS)
                values = await pipe.execute()
            for run, fields in zip(chunk, values, strict=True):
                if (row := _row(run, fields)) is None:
                    self._rows.pop(run, None)
                else:
                    self._rows[run] = row


def _texts(members: Iterable[bytes]) -> list[str]:
    return [member.decode(errors="replace") for member in members]


def _row(run: str, fields: list[bytes | None]) -> RunRow | None:
    """None for a run that is gone, or a record that is none of ours."""
    try:
        name, state, model = (value.decode() for value in fields[:3])  # type: ignore[union-attr]
        document_name = (fields[3] or b"").decode()
        numbers = [int(value or 0) for value in fields[4:]]
        return RunRow(run, name, state, model, document_name, *numbers)
    except (AttributeError, TypeError, ValueError):
        return None
