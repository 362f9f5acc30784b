"""Who did what to runs, snapshots and workers by hand: a bounded log in Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors

MAX_ENTRIES = 10_000
MAX_FIELD_CHARS = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action. `who` names a role or user, never a secret; `at_ms` is Redis' clock, 0 until it is written."""

    who: str
    address: str
    action: str
    target: str
    outcome: str
    at_ms: int = 0


class AuditLedger:
    """Writes and reads the log; nothing of it is ever changed."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable

    async def record(self, entry: AuditEntry) -> None:
        """Append an entry; the oldest leave. Raises BrokerError."""
        names = ("who", "address", "action", "target", "outcome")
        fields = {name: str(getattr(entry, name))[:MAX_FIELD_CHARS] for name in names}
        with broker_errors():
            await self._redis.xadd(keys.AUDIT, fields, maxlen=MAX_ENTRIES, approximate=True)

    async def newest(self, limit: int, *, before: str = "+") -> tuple[list[AuditEntry], str]:
        """Entries before a stream id, the newest first, and the id to go on from ("" at the end)."""
        with broker_errors():
            rows = await self._redis.xrevrange(
                keys.AUDIT, before if before == "+" else f"({before}", "-", limit + 1
            )
        entries = [_entry(entry_id, fields) for entry_id, fields in rows[:limit]]
        return entries, rows[limit - 1][0].decode() if len(rows) > limit else ""


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> AuditEntry:
    texts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    known = {name: texts.get(name, "") for name in ("who", "address", "action", "target", "outcome")}
    return AuditEntry(**known, at_ms=int(entry_id.split(b"-")[0]))
