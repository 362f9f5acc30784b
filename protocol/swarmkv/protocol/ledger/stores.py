"""The ledger's view of snapshot stores: what their workers say that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import decode, encode, unpack
from swarmkv.protocol.errors import ProtocolError
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import StoredSnapshot, StoreInfo

MAX_LISTED = 1_000  # snapshots of a report: the ones used last


class StoreLedger:
    """Reports of stores; each lives as long as somebody renews it."""

    def __init__(self, redis: ArqRedis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts

    async def report(self, store: StoreInfo, *, ttl_ms: int) -> None:
        """Say what a store holds, in place of what was said before.

        Redis fills in what it knows better: documents, models and hits of a snapshot, and whether runs need it.
        """
        listed = [snapshot.model_dump() for snapshot in store.snapshots[:MAX_LISTED]]
        about = store.model_copy(update={"snapshots": ()})
        await self._scripts.run("inventory", store=store.id, about=encode(about), snapshots=listed, ttl_ms=ttl_ms)

    async def all(self) -> list[StoreInfo]:
        """Every store with a live report, by host and path. What cannot be read is left out."""
        with broker_errors():
            ids: list[bytes] = await self._redis.zrange(keys.STORES, 0, -1)
            pipe = self._redis.pipeline(transaction=False)
            for store in ids:
                pipe.hgetall(keys.key("store", store=store.decode(errors="replace")))
            pipe.time()
            *rows, now = await pipe.execute()
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        found = (_store(row, now_ms) for row in rows if row)
        return sorted((store for store in found if store is not None), key=lambda store: (store.host, store.path))


def _store(row: dict[bytes, bytes], now_ms: int) -> StoreInfo | None:
    """None for a report that is none of ours."""
    try:
        about = decode(StoreInfo, row[b"about"])
        snapshots = _snapshots(unpack(row[b"snapshots"]))
        age_s = max(0, now_ms - int(row[b"reported_ms"])) / 1000
    except (ProtocolError, KeyError, ValueError):  # pydantic's errors are ValueErrors
        return None
    return about.model_copy(update={"snapshots": snapshots, "age_s": age_s})


def _snapshots(items: Any) -> Sequence[StoredSnapshot]:
    """An empty list is a map to Lua's msgpack."""
    lists = ("documents", "models")
    return tuple(
        StoredSnapshot.model_validate({**item, **{name: tuple(item.get(name) or ()) for name in lists}})
        for item in items or ()
    )
