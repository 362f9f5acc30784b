"""Telling Redis what the snapshot store holds, for people who look: nothing else reads it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from time import monotonic

from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.messages import StoredSnapshot, StoreInfo
from swarmkv.snapshots import SnapshotEntry, SnapshotStore

logger = logging.getLogger(__name__)

RENEW_S = 10.0  # a report is made anew at least so often: hits and uses change without the files
TTL_MS = 40_000
ID_DIGITS = 16


class Inventory:
    """One for a process. Every worker on a store reports it: who reports last is as right as the others."""

    def __init__(self, ledger: Ledger, store: SnapshotStore, *, every_s: float) -> None:
        self._ledger = ledger
        self._store = store
        self._every_s = every_s
        self._known: dict[str, SnapshotEntry] = {}
        self._reported_s = float("-inf")
        self._store_id = ""

    def store_id(self) -> str:
        """The same in every process that sees this directory, be it in another container; "" until it is known."""
        return self._store_id

    async def identify(self) -> None:
        """Find out the store's id. A store that cannot be used is left without one: its users say what is wrong."""
        try:
            self._store_id = await asyncio.to_thread(self._identity)
        except (SwarmkvError, OSError) as exc:
            logger.debug("store: %s", exc, extra={"action": "store_problem"})

    async def run(self) -> None:
        """Look at the directory every so often, and report when its files changed or the report is old."""
        while True:
            try:
                await self._look()
            except (SwarmkvError, OSError) as exc:  # Redis is away, or the directory is gone
                logger.debug("inventory: %s", exc, extra={"action": "inventory_failed"})
            await asyncio.sleep(self._every_s)

    async def _look(self) -> None:
        found = {entry.key: entry for entry in await asyncio.to_thread(self._store.ls, self._known)}
        is_changed = _kept(found) != _kept(self._known)
        self._known = found
        if is_changed or monotonic() - self._reported_s >= RENEW_S:
            await self._ledger.stores.report(await asyncio.to_thread(self._report), ttl_ms=TTL_MS)
            self._reported_s = monotonic()

    def _identity(self) -> str:
        return digest_bytes(self._store.handshake().encode())[:ID_DIGITS]

    def _report(self) -> StoreInfo:
        self._store_id = self._identity()  # a directory that was removed and made again is another store
        return StoreInfo(
            id=self._store_id,
            host=socket.gethostname(),
            path=str(self._store.path),
            used_bytes=self._store.used_bytes(),
            limit_bytes=self._store.limit_bytes(),
            num_snapshots=len(self._known),
            snapshots=tuple(_stored(entry) for entry in self._known.values()),
        )


def _kept(entries: Mapping[str, SnapshotEntry]) -> dict[str, bool]:
    """What people wait to see: which snapshots there are, and which are pinned."""
    return {key: entry.is_pinned for key, entry in entries.items()}


def _stored(entry: SnapshotEntry) -> StoredSnapshot:
    return StoredSnapshot(
        key=entry.key,
        tokens=entry.prefix_tokens,
        size_bytes=entry.size_bytes,
        created_ms=entry.created_ms,
        used_ms=entry.last_used_ms,
        is_pinned=entry.is_pinned,
        problem=entry.problem,
    )
