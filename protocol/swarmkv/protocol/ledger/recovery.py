"""The ledger's view of what failed: the dead-letter list, and putting branches back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import decode, encode
from swarmkv.protocol.errors import DocumentGone, EntryNotFound, ProtocolError, RunNotFound
from swarmkv.protocol.ledger.limits import NO_LIMITS, Limits, check_room
from swarmkv.protocol.ledger.runs import checked_id
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import BranchState, DeadBranch, ErrorInfo, RunSpec

_ENTRY_ID = re.compile(r"([0-9a-f]{1,32}):([0-9]{1,6})")
_CHUNK = 500  # entries that are read or dropped in one round trip


class RecoveryLedger:
    """Failed branches as people look after them."""

    def __init__(self, redis: ArqRedis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts

    async def retry(
        self,
        run: str,
        states: Sequence[BranchState],
        *,
        names: Sequence[str] = (),
        deadline_ms: int = 0,
        limits: Limits = NO_LIMITS,
    ) -> list[str]:
        """Queue branches again that ended in one of `states`, as new attempts. Returns their names in order.

        `names` chooses among them. A run that had ended is open again, for `deadline_ms` from now, or as long as it
        was given before. Raises RunNotFound, DocumentGone, Overloaded, BrokerError; nothing was changed then.
        """
        with broker_errors():
            data = await self._redis.hget(keys.key("run", run=checked_id(run)), "spec")
        if data is None:
            raise RunNotFound(f"There is no run {run!r}.")
        prefix = decode(RunSpec, data).prefix
        status, *answer = await self._scripts.run(
            "retry",
            run=run,
            states=list(states),
            names=list(names),
            prefix_spec=encode(prefix),
            document=prefix.document,
            deadline_ms=deadline_ms,
            limits=limits.as_argument(),
        )
        check_room([status, *answer])
        if status == b"unknown":  # it has expired meanwhile
            raise RunNotFound(f"There is no run {run!r}.")
        if status == b"document_gone":
            raise DocumentGone(f"The document of run {run} is no longer in Redis: it cannot be tried again.")
        return [name.decode() for name in answer]

    async def dead(self) -> list[DeadBranch]:
        """The dead-letter list, the newest entry first. What of it cannot be read is left out."""
        with broker_errors():
            members: list[bytes] = await self._redis.zrevrange(keys.DEAD, 0, -1)
        found: list[DeadBranch] = []
        for start in range(0, len(members), _CHUNK):
            found += await self._read(members[start : start + _CHUNK])
        return sorted(found, key=lambda entry: entry.dead_ms, reverse=True)

    async def _read(self, members: list[bytes]) -> list[DeadBranch]:
        ids = [match.groups() for member in members if (match := _match(member.decode(errors="replace")))]
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for run, index in ids:
                pipe.hgetall(keys.key("dead", run=run, index=index))
            rows = await pipe.execute()
        entries = (_entry(run, index, row) for (run, index), row in zip(ids, rows, strict=True) if row)
        return [entry for entry in entries if entry is not None]

    async def dead_branch(self, entry_id: str) -> DeadBranch:
        """One entry, by its id or as RUN/BRANCH; raises EntryNotFound."""
        if match := _match(entry_id):
            run, index = match.groups()
            with broker_errors():
                row = await self._redis.hgetall(keys.key("dead", run=run, index=int(index)))
            found = _entry(run, index, row) if row else None
        else:
            found = next((entry for entry in await self.dead() if entry.path == entry_id), None)
        if found is None:
            raise EntryNotFound(f"There is no dead-letter entry {entry_id!r}.")
        return found

    async def drop(self, entries: Sequence[DeadBranch]) -> int:
        """Forget entries; their branches stay failed. Returns how many were there."""
        count = 0
        for start in range(0, len(entries), _CHUNK):
            chunk = entries[start : start + _CHUNK]
            with broker_errors():
                pipe = self._redis.pipeline(transaction=True)
                pipe.delete(*(keys.key("dead", run=entry.run_id, index=entry.index) for entry in chunk))
                pipe.zrem(keys.DEAD, *(entry.id for entry in chunk))
                count += int((await pipe.execute())[0])
        return count


def _match(text: str) -> re.Match[str] | None:
    return _ENTRY_ID.fullmatch(text)


def _entry(run: str, index: str, row: dict[bytes, bytes]) -> DeadBranch | None:
    """None for an entry that is none of ours."""
    try:
        fields = {name.decode(): value.decode() for name, value in row.items()}
        return DeadBranch.model_validate(
            {
                "run_id": run,
                "index": int(index),
                "name": fields["name"],
                "model": fields["model"],
                "error": ErrorInfo(code=fields["code"], message=fields["message"], hint=fields["hint"]),
                **{name: int(fields[name]) for name in ("attempts", "crashes", "solo_crashes", "rebuilds")},
                "dead_ms": int(fields["dead_ms"]),
            }
        )
    except (ValueError, KeyError, ProtocolError):  # pydantic's and Unicode's errors are ValueErrors
        return None
