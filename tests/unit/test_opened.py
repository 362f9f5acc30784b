"""Mapped snapshots are shared and kept, and never keep the memory of what left the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.protocol.errors import SnapshotMissing
from swarmkv.snapshots import SnapshotStore
from swarmkv.workers.opened import OpenSnapshots
from tests.snapshot_support import publish


def mapped_files(directory: Path) -> int:
    """How many files of a directory this process has mapped, unlinked ones too."""
    maps = Path("/proc/self/maps").read_text()
    return sum(str(directory) in line for line in maps.splitlines())


async def test_an_evicted_snapshot_is_unmapped_once_nobody_uses_it(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", 1 << 20)
    key = publish(store, 1).key
    snapshots = OpenSnapshots(store, keep=4)
    async with snapshots.lease(key):
        store.remove(key)
        snapshots.drop_evicted()
        assert mapped_files(tmp_path / "store") == 1
    snapshots.drop_evicted()
    assert mapped_files(tmp_path / "store") == 0
    with pytest.raises(SnapshotMissing):
        async with snapshots.lease(key):
            pass


async def test_a_stored_snapshot_stays_mapped_and_counts_as_recent(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", 1 << 20)
    key = publish(store, 1).key
    snapshots = OpenSnapshots(store, keep=4)
    async with snapshots.lease(key):
        pass
    snapshots.drop_evicted()
    assert snapshots.recent() == [key]
    assert mapped_files(tmp_path / "store") == 1
    snapshots.close()
    assert mapped_files(tmp_path / "store") == 0


async def test_an_unused_mapping_takes_none_of_the_memory_of_this_process(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", 1 << 20)
    key = publish(store, 1).key
    snapshots = OpenSnapshots(store, keep=4)
    async with snapshots.lease(key) as snapshot:
        content = bytes(snapshot.payload)
        assert resident_kib(tmp_path / "store") > 0
    assert resident_kib(tmp_path / "store") == 0
    async with snapshots.lease(key) as snapshot:
        assert bytes(snapshot.payload) == content
    snapshots.close()


def resident_kib(directory: Path) -> int:
    """Memory of this process that is of mapped files of a directory."""
    total_kib, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, value, *_ = [*line.split(), ""]
        if not name.endswith(":"):
            counts = str(directory) in line
        elif counts and name == "Rss:":
            total_kib += int(value)
    return total_kib
