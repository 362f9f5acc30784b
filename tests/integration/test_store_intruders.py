"""Another user, or whoever can write to Redis, tries to make the store read or write what it should not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from swarmkv.protocol.errors import ConfigError, SnapshotCorrupt, SnapshotError, SnapshotMissing
from swarmkv.snapshots import SnapshotStore
from swarmkv.snapshots import directory as directory_module
from swarmkv.snapshots.directory import StoreDirectory
from tests.snapshot_support import META, MIB, key_of, names_in, publish, tokens_of

SOMEBODY = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store", 64 * MIB)


# -- names


@pytest.mark.parametrize(
    "key",
    [
        *("../store/x", "..", ".", "/etc/passwd", f"/{key_of(1)}", f"{key_of(1)}/..", f"./{key_of(1)}"),
        *(
            f"{key_of(1)}\0",
            "\0",
            f"\0{key_of(1)}",
            f"{key_of(1)}.kv",
            key_of(1).upper(),
            f" {key_of(1)}",
            "é" * 32,
        ),
        *("\N{FULLWIDTH DIGIT ONE}" * 32, ".lock", "handshake", "\udc80", "\x80\x04}q\x00."),
    ],
)
def test_a_key_that_is_no_digest_names_no_file(store: SnapshotStore, key: str) -> None:
    publish(store, 1)
    for refuse in (store.open, store.verify):
        with pytest.raises(SnapshotMissing):
            refuse(key)
    assert store.remove(key) is False
    assert store.holds(key) is False
    assert names_in(store.path) == [f"{key_of(1)}.kv"]


def test_a_snapshot_is_published_under_the_digest_of_its_content_only(store: SnapshotStore) -> None:
    for key in ("../outside", "0" * 32):
        with store.reserve(10, 400) as writer, pytest.raises(ValueError, match="key is stated as"):
            writer.publish(replace(META, key=key), tokens_of(1))
    assert names_in(store.path) == []


# -- planted files


@as_root
def test_a_snapshot_of_another_user_is_not_read_and_makes_way(store: SnapshotStore) -> None:
    key = publish(store, 1).key
    os.chown(store.path / f"{key}.kv", SOMEBODY, SOMEBODY)
    with pytest.raises(SnapshotCorrupt, match="another user owns it"):
        store.open(key)
    assert [entry.problem != "" for entry in store.ls()] == [True]
    publish(store, 1)
    store.open(key).close()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_snapshot_that_others_can_write_is_not_read(store: SnapshotStore, mode: int) -> None:
    key = publish(store, 1).key
    (store.path / f"{key}.kv").chmod(mode)
    with pytest.raises(SnapshotCorrupt, match="can write to it"):
        store.open(key)


@as_root
def test_a_lock_or_handshake_of_another_user_is_not_trusted(store: SnapshotStore) -> None:
    token = store.handshake()
    os.chown(store.path / "handshake", SOMEBODY, SOMEBODY)
    assert not store.sees(token)
    assert store.handshake() != token
    os.chown(store.path / ".lock", SOMEBODY, SOMEBODY)
    with pytest.raises(ConfigError, match="another user owns it"):
        store.sweep()


@as_root
def test_a_temporary_file_of_another_user_is_swept(store: SnapshotStore) -> None:
    planted = store.path / ".1-0123456789abcdef.tmp"
    planted.write_bytes(b"x" * 100)
    os.chown(planted, SOMEBODY, SOMEBODY)
    assert store.sweep() == 100
    assert not planted.exists()


# -- temporary files


def test_temporary_names_cannot_be_foreseen_and_never_open_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = StoreDirectory(tmp_path / "store")
    names = {directory_module._temp_name() for _ in range(1_000)}
    assert len(names) == 1_000
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    with directory.opened():
        pass
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "store" / directory_module._temp_name()).symlink_to(victim)
    store = SnapshotStore(tmp_path / "store", 64 * MIB)
    (tmp_path / "store" / directory_module._temp_name()).symlink_to(victim)  # swept at the start above
    with directory.locked() as dir_fd, pytest.raises(FileExistsError):
        directory.create_temp(dir_fd, 100)
    assert victim.read_bytes() == b"precious"
    assert store.sweep() >= 0
    publish(store, 1)
    assert victim.read_bytes() == b"precious"


def test_a_file_being_written_is_private_from_its_first_moment(store: SnapshotStore) -> None:
    before = os.umask(0)
    try:
        with store.reserve(10, 400):
            (name,) = names_in(store.path)
            assert (store.path / name).stat().st_mode & 0o777 == 0o600
        fresh = SnapshotStore(store.path.parent / "fresh", MIB)
        assert fresh.path.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_directory_swapped_for_a_link_while_the_store_runs_is_refused(
    store: SnapshotStore, tmp_path: Path
) -> None:
    publish(store, 1)
    store.path.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    store.path.symlink_to(tmp_path / "elsewhere")
    for call in (lambda: publish(store, 2), lambda: store.open(key_of(1)), store.ls, store.sweep):
        with pytest.raises((ConfigError, SnapshotError)):
            call()
    assert list((tmp_path / "elsewhere").iterdir()) == []
