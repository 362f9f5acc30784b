"""What goes wrong around snapshot files: killed writers, full file systems, damaged and half-written files."""

from __future__ import annotations

import os
import random
import resource
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from swarmkv.protocol.errors import SnapshotCorrupt, SnapshotError, SnapshotMismatch, SnapshotMissing, StoreFull
from swarmkv.snapshots import SnapshotStore, SnapshotTooLarge
from swarmkv.snapshots.format import FIXED_BYTES, HEADER_BYTES
from tests.mounts import mounted_tmpfs
from tests.snapshot_support import (
    META,
    MIB,
    content_of,
    key_of,
    names_in,
    processes,
    publish,
    publish_without_end,
    read_until,
    reserve_blindly,
    reserve_over_the_file_size_limit,
    tokens_of,
    wait_until,
    write_without_end,
)

KILLS = 20
PAYLOAD_AT = HEADER_BYTES + 4096
SMALL_TMPFS_BYTES = 8 * MIB


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path) / "store"


@pytest.fixture
def store(folder: Path) -> SnapshotStore:
    return SnapshotStore(folder, 64 * MIB)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A directory on a tmpfs of its own of 8 MiB, which dates every read."""
    with mounted_tmpfs(tmp_path, SMALL_TMPFS_BYTES, "strictatime") as path:
        yield path / "store"


def result_of(body: Callable[[Path, int, Connection], None], folder: Path, size_bytes: int) -> str:
    """What a process sent; a process that died by a signal fails the test."""
    end, theirs = processes.Pipe()
    child = processes.Process(target=body, args=(folder, size_bytes, theirs))
    child.start()
    child.join(30)
    assert child.exitcode == 0, f"the process ended by {child.exitcode}"
    sent: str = end.recv()
    return sent


def with_bytes(path: Path, at: int, data: bytes) -> None:
    """Replace a file by a new one that differs in a few bytes."""
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.unlink()
    path.write_bytes(content)


# --- damaged files


def test_every_kind_of_flip_in_a_published_file_is_noticed_before_a_byte_is_handed_on(
    store: SnapshotStore,
) -> None:
    publish(store, 1, 20_001)
    path = store.path / f"{key_of(1)}.kv"
    good = path.read_bytes()
    drawn = random.Random(7)
    offsets = {*range(FIXED_BYTES), PAYLOAD_AT, PAYLOAD_AT + 4096, len(good) - 1}
    offsets |= {drawn.randrange(FIXED_BYTES, len(good)) for _ in range(400)}
    for at in sorted(offsets):
        with_bytes(path, at, bytes([good[at] ^ (1 << drawn.randrange(8))]))
        with pytest.raises((SnapshotCorrupt, SnapshotMismatch), match=key_of(1)):
            store.open(key_of(1))
        path.write_bytes(good)


@pytest.mark.parametrize("value", [b"\xff\xff\xff\xff", b"\0\0\0\0"], ids=["huge", "zero"])
def test_counts_inside_the_payload_cannot_be_changed_and_cost_no_memory(store: SnapshotStore, value: bytes) -> None:
    publish(store, 1)
    path = store.path / f"{key_of(1)}.kv"
    good = path.read_bytes()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for at in range(PAYLOAD_AT, PAYLOAD_AT + 64, 4):
        with_bytes(path, at, value)
        with pytest.raises(SnapshotCorrupt, match="payload's checksum"):
            store.open(key_of(1))
        path.write_bytes(good)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
    publish(store, 1)
    with store.open(key_of(1)) as snapshot:
        assert snapshot.payload == content_of(1, 10_000)


@pytest.mark.parametrize("percent", [0, 25, 50, 75, 99])
def test_a_cut_file_is_refused_and_a_good_one_beside_it_still_opens(store: SnapshotStore, percent: int) -> None:
    publish(store, 1, 100_001)
    publish(store, 2)
    path = store.path / f"{key_of(1)}.kv"
    os.truncate(path, path.stat().st_size * percent // 100)

    with pytest.raises(SnapshotCorrupt, match=f"{key_of(1)} is damaged: the file has"):
        store.open(key_of(1))
    with store.open(key_of(2)) as snapshot:
        assert snapshot.payload == content_of(2, 10_000)
    assert "the file has" in {entry.key: entry.problem for entry in store.ls()}[key_of(1)]
    publish(store, 1, 100_001)
    store.open(key_of(1)).close()


def test_a_file_of_another_version_is_refused_and_a_new_prefill_replaces_it(
    store: SnapshotStore,
) -> None:
    publish(store, 1)
    with_bytes(store.path / f"{key_of(1)}.kv", 8, b"\x02")

    with pytest.raises(SnapshotMismatch, match=r"format version 2; this swarmkv reads version 1"):
        store.open(key_of(1))
    assert "version 2" in store.ls()[0].problem
    publish(store, 1)
    store.open(key_of(1)).close()


# --- half-written files


def test_a_snapshot_that_is_being_written_is_missing_until_it_is_whole(store: SnapshotStore) -> None:
    tokens = tokens_of(1)
    with store.reserve(10_000, len(tokens)) as writer:
        writer.payload[:5000] = content_of(1, 5000)
        with pytest.raises(SnapshotMissing):
            store.open(key_of(1))
        assert store.ls() == []

        writer.payload[:] = content_of(1, 10_000)
        writer.publish(META, tokens)

    store.open(key_of(1)).close()


def test_readers_beside_a_writer_that_publishes_the_key_again_see_whole_snapshots_only(
    store: SnapshotStore,
) -> None:
    publish(store, 1, 300_000)
    writer = processes.Process(target=publish_without_end, args=(store.path, 64 * MIB, 1, 300_000))
    writer.start()
    path = store.path / f"{key_of(1)}.kv"
    first = path.stat().st_ino
    wait_until(lambda: path.stat().st_ino != first, "the writer publishes")
    end, theirs = processes.Pipe()
    reader = processes.Process(target=read_until, args=(store.path, 1, 300_000, 300, theirs))
    reader.start()
    reader.join(60)
    writer.kill()
    writer.join()

    assert reader.exitcode == 0
    assert end.recv() == ""


def test_a_killed_writer_does_not_block_its_key(store: SnapshotStore) -> None:
    end, theirs = processes.Pipe()
    child = processes.Process(target=write_without_end, args=(store.path, 64 * MIB, theirs))
    child.start()
    assert end.recv() == "reserved"
    child.kill()
    child.join()
    assert len(names_in(store.path)) == 1

    publish(store, 1)  # by a store that was open all the time: no restart is needed

    assert names_in(store.path) == [key_of(1) + ".kv"]


def test_what_killed_writers_leave_is_swept_at_the_next_start_and_the_living_keep_theirs(
    store: SnapshotStore,
) -> None:
    publish(store, 1)
    living = store.reserve(MIB, 400)
    base_bytes = store.used_bytes()
    base_free = store.free_bytes()
    for _ in range(KILLS):
        end, theirs = processes.Pipe()
        child = processes.Process(target=write_without_end, args=(store.path, 64 * MIB, theirs))
        child.start()
        assert end.recv() == "reserved"
        child.kill()
        child.join()
        assert store.used_bytes() > base_bytes

        restarted = SnapshotStore(store.path, 64 * MIB)

        assert restarted.used_bytes() == base_bytes
    assert store.free_bytes() > base_free - 4 * MIB
    living.payload[:] = content_of(2, MIB)
    living.publish(META, tokens_of(2))
    with store.open(key_of(2)) as snapshot:
        assert snapshot.payload == content_of(2, MIB)


# --- full file systems


def test_a_full_file_system_is_an_error_with_the_numbers_and_leaves_nothing(small_tmpfs: Path) -> None:
    store = SnapshotStore(small_tmpfs, 1024 * MIB)
    (small_tmpfs.parent / "ballast").write_bytes(bytes(7 * MIB))

    with pytest.raises(StoreFull, match=r"needs 3\.0 MiB; .* has 1\.0 MiB free") as caught:
        store.reserve(3 * MIB, 400)

    assert not isinstance(caught.value, SnapshotTooLarge)
    assert names_in(small_tmpfs) == []
    (small_tmpfs.parent / "ballast").unlink()
    publish(store, 1, 3 * MIB)


def test_no_writer_dies_by_sigbus_even_when_room_is_lost_between_asking_and_taking(
    small_tmpfs: Path,
) -> None:
    sent = result_of(reserve_blindly, small_tmpfs, 9 * MIB)

    assert "needs 9.0 MiB" in sent
    assert "No space left on device" in sent
    assert names_in(small_tmpfs) == []


def test_a_snapshot_over_the_whole_file_system_is_final(small_tmpfs: Path) -> None:
    store = SnapshotStore(small_tmpfs, 1024 * MIB)

    with pytest.raises(SnapshotTooLarge, match=r"needs 30\.0 MiB; .* holds 8\.0 MiB in all"):
        store.reserve(30 * MIB, 400)


def test_unpinned_snapshots_make_room_when_the_file_system_is_smaller_than_the_budget(
    small_tmpfs: Path,
) -> None:
    store = SnapshotStore(small_tmpfs, 1024 * MIB)
    publish(store, 1, 3 * MIB)
    publish(store, 2, 3 * MIB)
    publish(store, 3, 3 * MIB)

    assert [entry.key for entry in store.ls()] == [key_of(3), key_of(2)]


def test_listing_and_verifying_are_no_use_where_the_file_system_dates_every_read(
    small_tmpfs: Path,
) -> None:
    store = SnapshotStore(small_tmpfs, 1024 * MIB)
    publish(store, 1)
    publish(store, 2)
    before = [(entry.key, entry.last_used_ms) for entry in store.ls()]

    def ticked() -> bool:  # the kernel's clock for files is coarse
        probe = small_tmpfs / "probe"
        probe.write_bytes(b"")
        return probe.stat().st_mtime_ns // 1_000_000 > before[0][1]

    wait_until(ticked, "the file system's clock moves on")
    store.verify(key_of(1))
    store.verify(key_of(2))

    assert [(entry.key, entry.last_used_ms) for entry in store.ls()] == before


def test_a_file_system_filled_by_stale_files_is_swept_at_start(small_tmpfs: Path) -> None:
    SnapshotStore(small_tmpfs, 7 * MIB)
    for number in range(9):
        try:
            (small_tmpfs / f".{number}-{number:016x}.tmp").write_bytes(bytes(MIB))
        except OSError:  # full, which is what it shall be
            continue

    store = SnapshotStore(small_tmpfs, 7 * MIB)

    assert names_in(small_tmpfs) == []
    publish(store, 1, 6 * MIB)


def test_too_small_a_file_system_is_named_at_start_with_the_docker_option(small_tmpfs: Path) -> None:
    problem = SnapshotStore(small_tmpfs, 64 * MIB).problem()

    assert problem is not None
    assert "needs 64.0 MiB" in problem
    assert "has 8.0 MiB" in problem
    assert "--shm-size" in problem


def test_a_file_size_limit_of_the_process_is_no_room(folder: Path) -> None:
    sent = result_of(reserve_over_the_file_size_limit, folder, 4 * MIB)

    assert "needs 4.0 MiB" in sent
    assert "File too large" in sent
    assert names_in(folder) == []


def test_a_failing_disk_is_an_error_of_ours_and_leaves_nothing(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, start: int, size_bytes: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", fail)

    with pytest.raises(SnapshotError, match="Input/output error") as caught:
        store.reserve(MIB, 400)

    assert not isinstance(caught.value, StoreFull)
    assert names_in(store.path) == []
