"""Snapshots that branch jobs have open: verified and mapped once, shared, closed when nobody needs them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swarmkv.protocol.errors import SwarmkvError
from swarmkv.snapshots import Snapshot, SnapshotStore

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    opening: asyncio.Task[Snapshot]
    users: int = 0


class OpenSnapshots:
    """Keeps up to `keep` unused snapshots mapped and at rest, least recently used out first.

    A mapping stays valid when its file is evicted, so a resident snapshot needs its file no more.
    """

    def __init__(self, store: SnapshotStore, *, keep: int) -> None:
        self._store = store
        self._keep = keep
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[Snapshot]:
        """A snapshot that stays mapped inside the block. Raises SnapshotError."""
        entry = self._entries.get(key)
        if entry is None:
            opening = asyncio.create_task(asyncio.to_thread(self._store.open, key), name=f"open:{key}")
            entry = self._entries[key] = _Entry(opening)
        self._entries.move_to_end(key)
        entry.users += 1
        try:
            yield await asyncio.shield(entry.opening)
        except BaseException:
            if not _is_open(entry):
                self._entries.pop(key, None)
            raise
        finally:
            entry.users -= 1
            if entry.users == 0 and _is_open(entry):
                entry.opening.result().rest()
            self._trim()

    def recent(self) -> list[str]:
        """Keys of the snapshots used last, at most as many as are kept: about what the engine has resident."""
        return list(self._entries)[-self._keep :] if self._keep else []

    def forget(self, key: str) -> None:
        """Do not use this mapping again: what it holds was refused."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.users == 0 and _is_open(entry):
            entry.opening.result().close()

    def drop_evicted(self) -> None:
        """Close unused mappings of snapshots that left the store: they keep its memory from being free."""
        for key in [key for key, entry in self._entries.items() if entry.users == 0 and not self._store.holds(key)]:
            self.forget(key)

    def close(self) -> None:
        """Close everything that is unused."""
        self._keep = 0
        self._trim()

    def _trim(self) -> None:
        unused = [key for key, entry in self._entries.items() if entry.users == 0]
        for key in unused[: max(0, len(unused) - self._keep)]:
            self.forget(key)


async def discard(store: SnapshotStore, key: str) -> None:
    """Remove a snapshot that was refused, so that it is really built again. What cannot be removed is left."""
    try:
        await asyncio.to_thread(store.remove, key)
    except (OSError, SwarmkvError) as exc:
        logger.warning("snapshot %s stays: %s", key, exc, extra={"action": "snapshot_stays", "snapshot": key})


def _is_open(entry: _Entry) -> bool:
    opening = entry.opening
    return opening.done() and not opening.cancelled() and opening.exception() is None
