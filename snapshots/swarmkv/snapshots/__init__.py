"""Snapshots of KV caches: the file format, and the store that shares them between processes."""

from swarmkv.snapshots.capacity import format_bytes
from swarmkv.snapshots.errors import SnapshotTooLarge
from swarmkv.snapshots.format import FORMAT_VERSION, snapshot_key
from swarmkv.snapshots.meta import LayoutValue, SnapshotMeta
from swarmkv.snapshots.snapshot import Snapshot
from swarmkv.snapshots.store import SnapshotEntry, SnapshotStore
from swarmkv.snapshots.writer import SnapshotWriter

__all__ = [
    "FORMAT_VERSION",
    "LayoutValue",
    "Snapshot",
    "SnapshotEntry",
    "SnapshotMeta",
    "SnapshotStore",
    "SnapshotTooLarge",
    "SnapshotWriter",
    "format_bytes",
    "snapshot_key",
]
