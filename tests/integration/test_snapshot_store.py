"""The store on real file systems, memory and disk, with real processes beside it."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swarmkv.protocol.errors import (
    ConfigError,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMismatch,
    SnapshotMissing,
    StoreFull,
)
from swarmkv.snapshots import SnapshotMeta, SnapshotStore, SnapshotTooLarge, format_bytes
from swarmkv.snapshots import format as format_module
from swarmkv.snapshots import handshake as handshake_module
from swarmkv.snapshots import prefault as prefault_module
from swarmkv.snapshots import store as store_module
from swarmkv.snapshots import writer as writer_module
from swarmkv.snapshots.capacity import UNLIMITED, Capacity, memory_limit_bytes
from swarmkv.snapshots.directory import StoreDirectory
from swarmkv.snapshots.format import HEADER_BYTES
from swarmkv.snapshots.prefault import touch
from tests.snapshot_support import (
    IDENTITY,
    META,
    MIB,
    content_of,
    key_of,
    names_in,
    open_once,
    processes,
    publish,
    reserve_in_a_row,
    sees,
    tokens_of,
)

SNAPSHOT_BYTES = 10_000 + HEADER_BYTES + 4096  # of `publish` with its default size


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A path that does not exist yet, on tmpfs and on a disk."""
    if request.param == "disk":
        yield tmp_path / "store"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path) / "store"


@pytest.fixture
def store(folder: Path) -> SnapshotStore:
    return SnapshotStore(folder, 64 * MIB)


# --- write and read


@pytest.mark.parametrize("size_bytes", [1, 4095, 4096, 4097, 3 * MIB + 1])
def test_a_published_snapshot_reads_back_byte_for_byte_at_any_length(store: SnapshotStore, size_bytes: int) -> None:
    meta = publish(store, 1, size_bytes)

    with store.open(meta.key) as snapshot:
        assert snapshot.payload == content_of(1, size_bytes)
        assert len(snapshot.payload) == snapshot.meta.payload_bytes == size_bytes
        assert snapshot.tokens == tokens_of(1)
        assert snapshot.payload.readonly
        assert snapshot.meta == meta
    assert meta.key == key_of(1)
    assert meta.prefix_tokens == 100
    assert meta.created_ms > 1_600_000_000_000


def test_a_file_is_hardly_larger_than_its_payload(store: SnapshotStore) -> None:
    publish(store, 1, 3 * MIB)

    assert 3 * MIB < store.used_bytes() <= 3 * MIB + HEADER_BYTES + 4096


def test_a_payload_begins_at_a_page(store: SnapshotStore) -> None:
    with store.reserve(10_000, 400) as writer:
        address = ctypes.addressof(ctypes.c_char.from_buffer(writer.payload))

    assert address % 4096 == 0


def test_fewer_bytes_than_reserved_can_be_published_and_the_rest_is_given_back(
    store: SnapshotStore,
) -> None:
    tokens = tokens_of(1)
    with store.reserve(2 * MIB, len(tokens), prefault=True) as writer:
        writer.payload[:5000] = content_of(1, 5000)
        meta = writer.publish(replace(META, payload_bytes=5000), tokens)

    assert meta.payload_bytes == 5000
    assert store.used_bytes() == HEADER_BYTES + 4096 + 5000
    with store.open(meta.key) as snapshot:
        assert snapshot.payload == content_of(1, 5000)


@pytest.mark.parametrize(
    ("wrong", "tokens", "message"),
    [
        ({"payload_bytes": 10_001}, tokens_of(1), "10001 bytes, 10000 were reserved"),
        ({"key": "0" * 32}, tokens_of(1), "key is stated as 000"),
        ({"prefix_tokens": 7}, tokens_of(1), "prefix_tokens is stated as 7, but is 100"),
        ({"payload_checksum": "0" * 32}, tokens_of(1), "payload_checksum is stated"),
        ({"identity": "x" * 5000}, tokens_of(1), "identity is out of range"),
        ({}, tokens_of(1)[:-4], "396 bytes of token ids, 400 were reserved"),
    ],
)
def test_what_contradicts_the_written_is_not_published(
    store: SnapshotStore, wrong: dict[str, object], tokens: bytes, message: str
) -> None:
    writer = store.reserve(10_000, 400)

    with pytest.raises(ValueError, match=message):
        writer.publish(replace(META, **wrong), tokens)  # type: ignore[arg-type]

    assert names_in(store.path) == []


def test_a_writer_that_is_left_by_an_error_leaves_nothing(store: SnapshotStore) -> None:
    def fail_half_way() -> None:
        with store.reserve(MIB, 400, prefault=True) as writer:
            writer.payload[:10] = b"0123456789"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()

    assert names_in(store.path) == []
    assert store.used_bytes() == 0


def test_a_writer_that_has_ended_refuses_more(store: SnapshotStore) -> None:
    writer = store.reserve(10, 400)
    writer.publish(META, tokens_of(1))
    writer.discard()

    with pytest.raises(ValueError, match="published or discarded"):
        writer.publish(META, tokens_of(1))
    with pytest.raises(ValueError, match="published or discarded"):
        _ = writer.payload
    assert names_in(store.path) == [key_of(1) + ".kv"]


def test_publishing_a_key_again_makes_a_new_file_and_leaves_open_readers_theirs(
    store: SnapshotStore,
) -> None:
    publish(store, 1, 5000)
    path = store.path / f"{key_of(1)}.kv"
    inode = path.stat().st_ino
    with store.open(key_of(1)) as before:
        publish(store, 1, 6000)

        assert before.payload == content_of(1, 5000)
        assert path.stat().st_ino != inode
        with store.open(key_of(1)) as after:
            assert after.payload == content_of(1, 6000)


def test_a_removed_or_evicted_snapshot_stays_readable_for_who_has_it_open(
    folder: Path,
) -> None:
    store = SnapshotStore(folder, 2 * SNAPSHOT_BYTES)
    publish(store, 1)
    publish(store, 2)
    with store.open(key_of(1)) as first, store.open(key_of(2)) as second:
        assert store.remove(key_of(1))
        publish(store, 3)
        publish(store, 4)

        assert names_in(folder) == sorted([key_of(3) + ".kv", key_of(4) + ".kv"])
        assert first.payload == content_of(1, 10_000)
        assert second.payload == content_of(2, 10_000)


def test_close_survives_views_that_are_still_held_and_they_stay_valid(store: SnapshotStore) -> None:
    publish(store, 1)
    snapshot = store.open(key_of(1))
    part = snapshot.payload[5000:]
    whole = memoryview(snapshot.payload)

    snapshot.close()
    snapshot.close()

    assert part == content_of(1, 10_000)[5000:]
    assert whole == content_of(1, 10_000)
    with pytest.raises(ValueError, match="closed"):
        _ = snapshot.payload
    with pytest.raises(ValueError, match="closed"):
        _ = snapshot.tokens


def test_a_closed_snapshot_is_unmapped(store: SnapshotStore) -> None:
    publish(store, 1)
    maps = Path("/proc/self/maps")

    with store.open(key_of(1)):
        assert key_of(1) in maps.read_text()

    assert key_of(1) not in maps.read_text()


def test_publish_and_discard_survive_an_exporter_that_still_holds_the_buffer(
    store: SnapshotStore,
) -> None:
    writer = store.reserve(10_000, 400)
    buffer = (ctypes.c_char * 10_000).from_buffer(writer.payload)
    ctypes.memmove(buffer, content_of(1, 10_000), 10_000)
    writer.publish(META, tokens_of(1))
    discarded = store.reserve(10_000, 400)
    held = discarded.payload[:]
    discarded.discard()

    with store.open(key_of(1)) as snapshot:
        assert snapshot.payload == bytes(buffer)
    assert bytes(held) == bytes(10_000)
    assert names_in(store.path) == [key_of(1) + ".kv"]


def test_sizes_over_4_gib_survive_a_whole_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = 2**32 + 4097
    # A sparse file: nothing is reserved and nothing read through, so that no 4 GiB are really written.
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, size: None)
    monkeypatch.setattr(writer_module, "payload_checksum", lambda payload: "a" * 32)
    monkeypatch.setattr(store_module, "check_payload", lambda meta, payload: None)
    store = SnapshotStore(tmp_path / "store", 2**40)

    with store.reserve(size_bytes, 400) as writer:
        writer.payload[:5] = b"first"
        writer.payload[-4:] = b"last"
        meta = writer.publish(META, tokens_of(1))

    with store.open(meta.key) as snapshot:
        assert len(snapshot.payload) == snapshot.meta.payload_bytes == size_bytes
        assert bytes(snapshot.payload[:5]) == b"first"
        assert bytes(snapshot.payload[-4:]) == b"last"
        assert snapshot.payload[2**31 : 2**31 + 5] == bytes(5)
    assert store.ls()[0].size_bytes == size_bytes + HEADER_BYTES + 4096


# --- what is absent, unsuitable or verified


@pytest.mark.parametrize("key", ["0" * 32, "", "../../etc/passwd", "A" * 32, "0" * 32 + "\n"])
def test_an_absent_key_is_missing_and_cannot_leave_the_directory(store: SnapshotStore, key: str) -> None:
    with pytest.raises(SnapshotMissing, match="has no snapshot"):
        store.open(key)
    assert store.remove(key) is False


def test_a_snapshot_of_another_engine_is_refused_by_the_names_of_the_fields(
    store: SnapshotStore,
) -> None:
    publish(store, 1)
    here = dict(META.layout) | {"kv_type_k": "q8_0"}

    with store.open(key_of(1)) as snapshot:
        snapshot.check(
            identity=IDENTITY,
            layout=META.layout,
            prefix_digest=META.prefix_digest,
            tokens=tokens_of(1),
        )
        with pytest.raises(SnapshotMismatch, match="kv_type_k is 'f16' in the snapshot, 'q8_0' here"):
            snapshot.check(identity="other", layout=here, prefix_digest=META.prefix_digest)


def test_a_collision_of_all_digests_does_not_give_another_documents_state(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_module, "digest_fields", lambda kind, **fields: "0" * 32)
    monkeypatch.setattr(format_module, "digest_bytes", lambda data: "1" * 32)
    monkeypatch.setattr(writer_module, "digest_bytes", lambda data: "1" * 32)
    publish(store, 1)

    with store.open(key_of(2)) as snapshot:
        assert snapshot.tokens == tokens_of(1)
        with pytest.raises(SnapshotMismatch, match="other token ids"):
            snapshot.check(
                identity=IDENTITY,
                layout=META.layout,
                prefix_digest=META.prefix_digest,
                tokens=tokens_of(2),
            )


def test_a_payload_is_read_through_once_for_each_file_and_always_by_verify(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    real = format_module.check_payload

    def counted(meta: SnapshotMeta, payload: memoryview) -> None:
        checked.append(meta.key)
        real(meta, payload)

    monkeypatch.setattr(store_module, "check_payload", counted)
    publish(store, 1)
    for _ in range(3):
        store.open(key_of(1)).close()
    assert len(checked) == 1
    store.verify(key_of(1))
    assert len(checked) == 2
    publish(store, 1)
    store.open(key_of(1)).close()
    assert len(checked) == 3


def test_a_file_that_failed_its_check_is_checked_again(store: SnapshotStore) -> None:
    publish(store, 1)
    damage(store.path / f"{key_of(1)}.kv", -1)

    for _ in range(2):
        with pytest.raises(SnapshotCorrupt, match="checksum"):
            store.open(key_of(1))


def test_verify_finds_damage_that_came_after_the_first_open(store: SnapshotStore) -> None:
    publish(store, 1)
    store.open(key_of(1)).close()
    damage(store.path / f"{key_of(1)}.kv", -1)

    with pytest.raises(SnapshotCorrupt, match="payload's checksum"):
        store.verify(key_of(1))


def damage(path: Path, at: int) -> None:
    """Flip one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))


# --- budget and eviction


def test_the_least_recently_used_snapshot_goes_first(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = SnapshotStore(folder, 3 * SNAPSHOT_BYTES)
    for number in (1, 2, 3):
        publish(store, number)
    store.open(key_of(1)).close()

    publish(store, 4)

    assert [entry.key for entry in store.ls()] == [key_of(4), key_of(1), key_of(3)]
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions == ["snapshot_published"] * 3 + ["snapshot_evicted", "snapshot_published"]


def test_listing_and_verifying_are_no_use(folder: Path) -> None:
    store = SnapshotStore(folder, 2 * SNAPSHOT_BYTES)
    publish(store, 1)
    publish(store, 2)
    store.verify(key_of(1))
    store.ls()

    publish(store, 3)

    assert [entry.key for entry in store.ls()] == [key_of(3), key_of(2)]


def test_pinned_snapshots_are_never_evicted_and_nothing_goes_in_vain(folder: Path) -> None:
    store = SnapshotStore(folder, 2 * SNAPSHOT_BYTES)
    publish(store, 1)
    publish(store, 2)

    with pytest.raises(StoreFull) as caught:
        store.reserve(SNAPSHOT_BYTES, 400, pinned=frozenset({key_of(1)}))

    used, pinned = format_bytes(2 * SNAPSHOT_BYTES), format_bytes(SNAPSHOT_BYTES)
    assert f"uses {used} of {used} ({pinned} waited for" in caught.value.message
    assert not isinstance(caught.value, SnapshotTooLarge)
    assert len(store.ls()) == 2
    store.reserve(10_000, 400, pinned=frozenset({key_of(1)})).discard()
    assert [entry.key for entry in store.ls()] == [key_of(1)]


def test_snapshots_that_people_pinned_are_never_evicted_by_any_store_on_the_directory(
    folder: Path,
) -> None:
    store = SnapshotStore(folder, 2 * SNAPSHOT_BYTES)
    publish(store, 1)
    publish(store, 2)

    assert (store.pin(key_of(1)), store.pin(key_of(1))) == (True, False)
    other = SnapshotStore(folder, 2 * SNAPSHOT_BYTES)
    publish(other, 3)

    assert [(entry.key, entry.is_pinned) for entry in store.ls()] == [(key_of(3), False), (key_of(1), True)]
    store.pin(key_of(3))
    with pytest.raises(StoreFull, match=r"\(0 bytes waited for, .* pinned, 0 bytes being written") as caught:
        store.reserve(10_000, 400)
    assert "swarmkv snapshots unpin" in caught.value.hint
    assert (store.unpin(key_of(3)), store.unpin(key_of(3))) == (True, False)
    publish(store, 4)
    assert {entry.key for entry in store.ls()} == {key_of(1), key_of(4)}


def test_a_pin_goes_with_its_snapshot_and_what_is_not_there_cannot_be_pinned(folder: Path) -> None:
    store = SnapshotStore(folder, 64 * MIB)
    publish(store, 1)
    publish(store, 2)
    for key in (key_of(1), key_of(2)):
        store.pin(key)

    store.remove(key_of(1))
    (folder / f"{key_of(2)}.kv").unlink()
    store.sweep()

    assert store.pinned() == frozenset()
    assert names_in(folder) == []
    for change in (store.pin, store.unpin):
        with pytest.raises(SnapshotMissing):
            change(key_of(1))
        with pytest.raises(SnapshotMissing):
            change("../../etc/passwd")


def test_a_pin_that_is_a_link_pins_nothing_and_is_not_written_through(folder: Path, tmp_path: Path) -> None:
    store = SnapshotStore(folder, 64 * MIB)
    publish(store, 1)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (folder / f"{key_of(1)}.pin").symlink_to(victim)

    assert store.pinned() == frozenset()
    with pytest.raises(SnapshotError, match="cannot be pinned"):
        store.pin(key_of(1))

    assert victim.read_text() == "kept"


def test_what_can_never_fit_is_refused_as_final_before_anything_is_evicted_or_written(
    folder: Path,
) -> None:
    store = SnapshotStore(folder, MIB)
    publish(store, 1)

    with pytest.raises(SnapshotTooLarge, match=r"needs 1\.2 MiB; the store at .* holds 1\.0 MiB in all"):
        store.reserve(MIB * 6 // 5, 400)

    assert names_in(folder) == [key_of(1) + ".kv"]


def test_files_being_written_count_against_the_budget(folder: Path) -> None:
    store = SnapshotStore(folder, 2 * MIB)
    with store.reserve(MIB, 400):
        assert store.used_bytes() == MIB + HEADER_BYTES + 4096
        with pytest.raises(StoreFull, match=r"1\.0 MiB being written"):
            store.reserve(MIB, 400)
    store.reserve(MIB, 400).discard()


def test_writers_in_several_processes_never_exceed_the_budget_together(folder: Path) -> None:
    budget_bytes = 4 * MIB
    ends, children = [], []
    for seed in (1, 2, 3):
        end, theirs = processes.Pipe()
        ends.append(end)
        children.append(processes.Process(target=reserve_in_a_row, args=(folder, budget_bytes, seed, 60, theirs)))
    for child in children:
        child.start()
    directory = StoreDirectory(folder)
    highest = 0
    while any(child.is_alive() for child in children):
        with directory.locked() as dir_fd:
            highest = max(highest, sum(file.size_bytes for file in directory.files(dir_fd)))
    for child in children:
        child.join()

    assert all(child.exitcode == 0 for child in children)
    assert sum(end.recv() for end in ends) > 60
    assert 2 * MIB < highest <= budget_bytes


def test_a_writer_that_gives_up_while_its_file_is_swept_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(folder, 4 * MIB)
    writer, flock = store.reserve(MIB, 400), fcntl.flock

    def beaten(fd: int, operation: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".tmp":
            writer.discard()  # behind the sweep's open of the file, before its lock
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", beaten)
    store.sweep()

    assert names_in(folder) == []


# --- the directory


def test_directory_and_files_are_private(store: SnapshotStore) -> None:
    publish(store, 1)
    store.handshake()

    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    for path in store.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(ConfigError, match=f"can be written by others \\(mode 0{mode:o}\\).*chmod 700"):
        SnapshotStore(tmp_path, MIB)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)

    with pytest.raises(ConfigError, match="belongs to user 12345, this is user 0"):
        SnapshotStore(tmp_path, MIB)


def test_a_symbolic_link_or_a_file_in_the_directorys_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")

    for name in ("link", "file"):
        with pytest.raises(ConfigError, match=f"{name} cannot be used"):
            SnapshotStore(tmp_path / name, MIB)


def test_links_and_pipes_inside_the_directory_are_never_followed(store: SnapshotStore) -> None:
    outside = store.path.parent / "outside"
    outside.write_bytes(b"precious")
    (store.path / f"{key_of(1)}.kv").symlink_to(outside)
    os.mkfifo(store.path / f"{key_of(2)}.kv")
    (store.path / ".1-0123456789abcdef.tmp").symlink_to(outside)
    (store.path / "handshake").symlink_to(outside)

    for number in (1, 2):
        with pytest.raises(SnapshotCorrupt, match="cannot be opened"):
            store.open(key_of(number))
    assert [entry.problem != "" for entry in store.ls()] == [True, True]
    store.sweep()
    assert store.sees(store.handshake())
    publish(store, 1)
    publish(store, 2)
    assert outside.read_bytes() == b"precious"
    assert {entry.problem for entry in store.ls()} == {""}


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match=r"\.lock"):
        SnapshotStore(tmp_path, MIB)
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_never_given_back_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    waiting = StoreDirectory(tmp_path, lock_timeout_s=0.05)

    with StoreDirectory(tmp_path).locked(), pytest.raises(SnapshotError, match=r"holds .*\.lock"):
        waiting.locked().__enter__()
    with waiting.locked():
        pass


def test_a_directory_that_vanishes_under_the_store_is_made_again(store: SnapshotStore) -> None:
    publish(store, 1)
    writer = store.reserve(10, 400)
    shutil.rmtree(store.path)

    with pytest.raises(SnapshotMissing):
        store.open(key_of(1))
    with pytest.raises(SnapshotError, match="could not be published"):
        writer.publish(META, tokens_of(2))
    publish(store, 1)
    store.open(key_of(1)).close()


def test_damaged_files_are_listed_and_can_be_removed(store: SnapshotStore) -> None:
    publish(store, 1)
    publish(store, 2)
    damage(store.path / f"{key_of(1)}.kv", 100)
    (store.path / "notes.txt").write_text("not ours")

    listed = {entry.key: entry for entry in store.ls()}

    assert listed.keys() == {key_of(1), key_of(2)}
    assert "header does not match" in listed[key_of(1)].problem
    assert listed[key_of(1)].meta is None
    good = listed[key_of(2)]
    assert (good.prefix_tokens, good.identity, good.size_bytes) == (100, IDENTITY, SNAPSHOT_BYTES)
    assert good.created_ms <= good.last_used_ms
    assert store.remove(key_of(1))
    assert [entry.key for entry in store.ls()] == [key_of(2)]


# --- beside other processes


def test_a_snapshot_outlives_readers_that_exit_and_readers_that_are_killed(
    store: SnapshotStore,
) -> None:
    publish(store, 1)
    for _ in range(2):
        end, theirs = processes.Pipe()
        child = processes.Process(target=open_once, args=(store.path, 1, theirs))
        child.start()
        assert end.recv() == 10_000
        child.kill()
        child.join()
    child = processes.Process(target=open_once, args=(store.path, 1, theirs))
    child.start()
    child.join()
    assert child.exitcode == 0

    with store.open(key_of(1)) as snapshot:
        assert snapshot.payload == content_of(1, 10_000)


def test_a_handshake_is_seen_by_another_process_on_the_same_directory_only(
    store: SnapshotStore, tmp_path: Path
) -> None:
    handshake = store.handshake()

    assert handshake == store.handshake()
    assert store.sees(handshake)
    assert not store.sees("")
    for path, is_same in ((store.path, True), (tmp_path / "other", False)):
        end, theirs = processes.Pipe()
        child = processes.Process(target=sees, args=(path, handshake, theirs))
        child.start()
        assert end.recv() is is_same
        child.join()


def test_a_copied_directory_does_not_pass_for_the_one_it_came_from(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake = store.handshake()
    shutil.copytree(store.path, tmp_path / "copy")
    monkeypatch.setattr(handshake_module, "_boot", lambda: "another-boot")

    copy = SnapshotStore(tmp_path / "copy", MIB)

    assert copy.handshake() != handshake


# --- room


def test_a_file_system_that_is_smaller_than_the_budget_is_a_problem_with_both_sizes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(folder, 256 * MIB)
    monkeypatch.setattr(Capacity, "of", lambda target: Capacity(64 * MIB, 60 * MIB))

    problem = store.problem()

    assert problem is not None
    assert "needs 256.0 MiB" in problem
    assert "has 60.0 MiB" in problem
    assert "--shm-size" in problem


def test_a_store_with_room_for_its_budget_has_no_problem(store: SnapshotStore) -> None:
    assert store.problem() is None
    assert store.free_bytes() > 64 * MIB


def test_the_tightest_memory_limit_above_the_process_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("5000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")

    assert memory_limit_bytes(membership, tmp_path) == 5000
    membership.write_text("0::/\n")
    assert memory_limit_bytes(membership, tmp_path) == UNLIMITED
    assert memory_limit_bytes(tmp_path / "absent", tmp_path) == UNLIMITED


def test_sizes_are_written_for_people() -> None:
    sizes = [512, 64 * MIB, 4 * 2**30, 3 * 2**40]

    assert [format_bytes(size) for size in sizes] == ["512 bytes", "64.0 MiB", "4.0 GiB", "3.0 TiB"]


# --- touching pages ahead


def test_a_prefaulted_payload_is_written_without_page_faults(store: SnapshotStore) -> None:
    pages = 16 * MIB // 4096
    with store.reserve(16 * MIB, 400, prefault=True) as writer:
        assert writer._prefault is not None
        assert writer._prefault.wait(20)
        content = content_of(1, 16 * MIB)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        writer.payload[:] = content
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    assert faults < pages / 10


def test_touching_pages_while_they_are_written_changes_nothing(store: SnapshotStore) -> None:
    content = content_of(1, 24 * MIB)
    with store.reserve(24 * MIB, 400, prefault=True) as writer:
        writer.payload[:] = content
        touch(writer._map, 0, len(writer._map))
        meta = writer.publish(META, tokens_of(1))

    with store.open(meta.key) as snapshot:
        assert snapshot.payload == content


def test_a_kernel_without_populate_touches_the_pages_by_reading(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefault_module, "MADV_POPULATE_WRITE", 9999)  # EINVAL
    test_touching_pages_while_they_are_written_changes_nothing(store)


def test_discarding_at_once_stops_the_touching(store: SnapshotStore) -> None:
    for _ in range(20):
        store.reserve(32 * MIB, 400, prefault=True).discard()

    assert store.used_bytes() == 0
    assert names_in(store.path) == []
