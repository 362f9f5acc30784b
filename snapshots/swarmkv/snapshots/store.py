"""The store.

Snapshots in one directory, within a budget of bytes, shared by any number of processes.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swarmkv.protocol.errors import (
    ConfigError,
    SnapshotError,
    SnapshotMissing,
    StoreFull,
)
from swarmkv.snapshots.capacity import Capacity, budget_problem, context_problem, format_bytes
from swarmkv.snapshots.directory import (
    SUFFIX,
    StoredFile,
    StoreDirectory,
    TempFile,
    open_snapshot,
)
from swarmkv.snapshots.errors import SnapshotTooLarge
from swarmkv.snapshots.eviction import plan_eviction
from swarmkv.snapshots.format import Extents, Header, check_payload, corrupt, read_header
from swarmkv.snapshots.handshake import directory_token, holds_token
from swarmkv.snapshots.meta import KEY_PATTERN, SnapshotMeta
from swarmkv.snapshots.pins import pin, pinned_keys, sweep_pins, unpin
from swarmkv.snapshots.snapshot import Snapshot
from swarmkv.snapshots.verified import VerifiedFiles
from swarmkv.snapshots.writer import SnapshotWriter

logger = logging.getLogger(__name__)

RESERVE_CHUNK_BYTES = 64 * 1024 * 1024  # a signal makes the kernel begin a chunk anew, not the file
UNPIN_HINT = "Unpin snapshots (`swarmkv snapshots unpin KEY`), or raise SWARMKV_STORE_BUDGET_BYTES."
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One file of the store, as `ls` lists it.

    `problem` says why it cannot be used; `meta` is None then.
    """

    key: str
    size_bytes: int
    last_used_ms: int
    meta: SnapshotMeta | None
    problem: str = ""
    is_pinned: bool = False

    @property
    def prefix_tokens(self) -> int:
        return self.meta.prefix_tokens if self.meta else 0

    @property
    def created_ms(self) -> int:
        return self.meta.created_ms if self.meta else 0

    @property
    def identity(self) -> str:
        return self.meta.identity if self.meta else ""


class SnapshotStore:
    """Reserves, publishes, opens and evicts snapshots. Safe to use from any thread and process.

    The store holds no file open: a writer or an open snapshot belongs to who asked for it.
    """

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        """Make the directory if needed and remove what dead writers left.

        Raises ConfigError when the directory is not private to this user or cannot be used.
        """
        if budget_bytes <= 0:
            raise ConfigError(f"SWARMKV_STORE_BUDGET_BYTES={budget_bytes} must be over 0.")
        self.path = directory
        self.budget_bytes = budget_bytes
        self._directory = StoreDirectory(directory)
        self._verified = VerifiedFiles()
        self.sweep()

    def reserve(
        self,
        payload_bytes: int,
        token_bytes: int,
        *,
        pinned: frozenset[str] = frozenset(),
        prefault: bool = False,
    ) -> SnapshotWriter:
        """Reserve a file for a snapshot: room first, so that writing into its mapping cannot fail.

        Evicts the least recently used snapshots whose keys are not `pinned`, if that makes the
        room; nothing is evicted when it does not. The caller owns the writer. `prefault` touches
        its pages in the background.

        Raises SnapshotTooLarge when it can never fit, StoreFull when it does not fit now,
        ValueError for sizes that no snapshot has.
        """
        extents = Extents.plan(token_bytes, payload_bytes)
        try:
            with self._directory.locked() as dir_fd:
                self._directory.sweep(dir_fd)
                self._make_room(dir_fd, extents.file_bytes, pinned)
                temp = self._directory.create_temp(dir_fd, extents.file_bytes)
            return self._map_reserved(temp, extents, prefault)
        except OSError as exc:
            raise self._no_room(exc, extents.file_bytes) from exc

    def open(self, key: str) -> Snapshot:
        """Map a snapshot, verified: header and token ids always, the payload once for each file and
        process.

        The caller closes it. Opening counts as use. Raises SnapshotMissing, SnapshotCorrupt, and
        SnapshotMismatch for another format version.
        """
        with self._reading(key) as (fd, status, header):
            snapshot = Snapshot(header, _map(fd, key, status.st_size))
            try:
                if not self._verified.knows(status, header):
                    check_payload(header.meta, snapshot.payload)
                    self._verified.add(status, header)
            except BaseException:
                snapshot.close()
                raise
            os.utime(fd, ns=(time.time_ns(), status.st_mtime_ns))  # mtime stays: it dates the content
        return snapshot

    def verify(self, key: str) -> SnapshotMeta:
        """Check every byte of a snapshot now; gives its metadata. Raises as `open` does."""
        with (
            self._reading(key) as (fd, status, header),
            Snapshot(header, _map(fd, key, status.st_size)) as snapshot,
        ):
            check_payload(header.meta, snapshot.payload)
            return snapshot.meta

    def ls(self, known: Mapping[str, SnapshotEntry] | None = None) -> list[SnapshotEntry]:
        """All snapshots, the most recently used first.

        Payloads are not read. Damaged files are listed as such. Files that an earlier list found
        well are not opened again.
        """
        files = sorted(self._files(), key=lambda file: file.last_used_ns, reverse=True)
        pinned = self.pinned()
        entries = (self._entry(file, pinned, known or {}) for file in files if file.key is not None)
        return [entry for entry in entries if entry is not None]

    def holds(self, key: str) -> bool:
        """Whether the store has a file of this key, be it readable or not."""
        return any(file.key == key for file in self._files())

    def remove(self, key: str) -> bool:
        """Remove a snapshot, or a damaged file of that key, and its pin.

        Whether there was one. Open mappings stay valid.
        """
        if not KEY_PATTERN.fullmatch(key):
            return False
        with self._directory.opened() as dir_fd:
            unpin(dir_fd, key)
            try:
                os.unlink(key + SUFFIX, dir_fd=dir_fd)
            except FileNotFoundError:
                return False
        return True

    def pin(self, key: str) -> bool:
        """Keep a snapshot from being evicted, until it is unpinned or removed; any number of times.

        Whether it was not pinned before. Raises SnapshotMissing, SnapshotError when the file system refuses it.
        """
        try:
            with self._directory.locked() as dir_fd:
                if not any(file.key == key for file in self._directory.files(dir_fd)):
                    raise self._missing(key)
                is_new = key not in pinned_keys(dir_fd)
                pin(dir_fd, key)
        except OSError as exc:
            raise SnapshotError(f"Snapshot {key} cannot be pinned in {self.path}: {exc.strerror}.") from exc
        return is_new

    def unpin(self, key: str) -> bool:
        """Let a snapshot be evicted again. Whether it was pinned. Raises SnapshotMissing."""
        if not self.holds(key):
            raise self._missing(key)
        with self._directory.opened() as dir_fd:
            return unpin(dir_fd, key)

    def pinned(self) -> frozenset[str]:
        """The keys that are pinned."""
        with self._directory.opened() as dir_fd:
            return pinned_keys(dir_fd)

    def sweep(self) -> int:
        """Remove the files of writers that died, and pins of snapshots that are gone.

        Gives the bytes of the former. Files being written are left alone.
        """
        with self._directory.locked() as dir_fd:
            sweep_pins(dir_fd)
            return self._directory.sweep(dir_fd)

    def used_bytes(self) -> int:
        """Bytes of all snapshots and of those being written."""
        return sum(file.size_bytes for file in self._files())

    def limit_bytes(self) -> int:
        """What it may hold: its budget, or its file system's size if that is less."""
        with self._directory.opened() as dir_fd:
            return min(self.budget_bytes, Capacity.of(dir_fd).total_bytes)

    def free_bytes(self) -> int:
        """Free bytes of the file system."""
        with self._directory.opened() as dir_fd:
            return Capacity.of(dir_fd).free_bytes

    def problem(self) -> str | None:
        """Why the store cannot grow to its budget, and what to do about it; None when it can."""
        return budget_problem(self.path, self.budget_bytes, self.used_bytes())

    def context_problem(self, needed_bytes: int, tokens: int) -> str | None:
        """Why no snapshot of that size, of a context of `tokens`, can ever be here; None when one can."""
        return context_problem(self.path, self.budget_bytes, needed_bytes, tokens)

    def handshake(self) -> str:
        """A token that only processes which see this very directory can confirm by `sees`."""
        return directory_token(self._directory)

    def sees(self, handshake: str) -> bool:
        """Whether another process's `handshake` came from the directory that this process sees."""
        return holds_token(self._directory, handshake)

    def _files(self) -> list[StoredFile]:
        with self._directory.opened() as dir_fd:
            return self._directory.files(dir_fd)

    def _make_room(self, dir_fd: int, needed_bytes: int, pinned: frozenset[str]) -> None:
        """Evict until `needed_bytes` fit budget and file system.

        Raises StoreFull, having evicted nothing.
        """
        capacity = Capacity.of(dir_fd)
        limit_bytes = min(self.budget_bytes, capacity.total_bytes)
        if needed_bytes > limit_bytes:
            raise SnapshotTooLarge(
                f"The snapshot needs {format_bytes(needed_bytes)}; the store at {self.path} holds "
                f"{format_bytes(limit_bytes)} in all."
            )
        files = self._directory.files(dir_fd)
        used_bytes = sum(file.size_bytes for file in files)
        excess_bytes = max(used_bytes + needed_bytes - limit_bytes, needed_bytes - capacity.free_bytes)
        kept = pinned_keys(dir_fd)
        victims = plan_eviction(files, excess_bytes, pinned | kept)
        if victims is None:
            raise self._full(files, needed_bytes, pinned, kept, capacity)
        for victim in victims:
            self._evict(dir_fd, victim)

    def _evict(self, dir_fd: int, victim: StoredFile) -> None:
        with suppress(FileNotFoundError):
            os.unlink(victim.name, dir_fd=dir_fd)
        logger.info(
            "evicted snapshot %s",
            victim.key,
            extra={
                "action": "snapshot_evicted",
                "snapshot": victim.key,
                "size_bytes": victim.size_bytes,
            },
        )

    def _full(
        self,
        files: list[StoredFile],
        needed_bytes: int,
        awaited: frozenset[str],
        kept: frozenset[str],
        capacity: Capacity,
    ) -> StoreFull:
        used_bytes = sum(file.size_bytes for file in files)
        awaited_bytes = sum(file.size_bytes for file in files if file.key in awaited)
        kept_bytes = sum(file.size_bytes for file in files if file.key in kept - awaited)
        writing_bytes = sum(file.size_bytes for file in files if file.key is None)
        pinned = f", {format_bytes(kept_bytes)} pinned" if kept_bytes else ""
        return StoreFull(
            f"The snapshot needs {format_bytes(needed_bytes)}; the store at {self.path} uses "
            f"{format_bytes(used_bytes)} of {format_bytes(self.budget_bytes)} ({format_bytes(awaited_bytes)} "
            f"waited for{pinned}, {format_bytes(writing_bytes)} being written) and its file system has "
            f"{format_bytes(capacity.free_bytes)} free.",
            hint=UNPIN_HINT if kept_bytes else "",
        )

    def _map_reserved(self, temp: TempFile, extents: Extents, prefault: bool) -> SnapshotWriter:
        """Outside the lock.

        The file already counts as used, and reserving a large one takes seconds.
        """
        try:
            for start in range(0, extents.file_bytes, RESERVE_CHUNK_BYTES):
                size_bytes = min(RESERVE_CHUNK_BYTES, extents.file_bytes - start)
                os.posix_fallocate(temp.fileno(), start, size_bytes)
            return SnapshotWriter(temp, extents, prefault=prefault)
        except BaseException:
            temp.remove()
            raise

    def _no_room(self, exc: OSError, needed_bytes: int) -> SnapshotError:
        if exc.errno not in _NO_ROOM:
            return SnapshotError(f"No snapshot can be written in {self.path}: {exc.strerror}.")
        return StoreFull(
            f"The snapshot needs {format_bytes(needed_bytes)}; the file system of {self.path} refuses it "
            f"({exc.strerror}, {format_bytes(self.free_bytes())} free); the store uses "
            f"{format_bytes(self.used_bytes())} of {format_bytes(self.budget_bytes)}."
        )

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, os.stat_result, Header]]:
        """An open snapshot's descriptor, status and checked header."""
        with self._directory.opened() as dir_fd:
            fd = self._open_file(dir_fd, key)
        try:
            status = os.fstat(fd)
            yield fd, status, read_header(fd, key, status.st_size)
        finally:
            os.close(fd)

    def _open_file(self, dir_fd: int, key: str) -> int:
        try:
            return open_snapshot(dir_fd, key)
        except FileNotFoundError:
            raise self._missing(key) from None
        except OSError as exc:
            raise corrupt(key, f"the file cannot be opened ({exc.strerror})") from exc

    def _missing(self, key: str) -> SnapshotMissing:
        return SnapshotMissing(
            f"The store at {self.path} has no snapshot {key!r}.",
            hint="It was evicted or never made here: a new prefill makes it.",
        )

    def _entry(
        self, file: StoredFile, pinned: frozenset[str], known: Mapping[str, SnapshotEntry]
    ) -> SnapshotEntry | None:
        """None for a file that went meanwhile."""
        key = file.key or ""
        last_used_ms, is_pinned = file.last_used_ns // 1_000_000, key in pinned
        if key in known and not known[key].problem:
            return replace(known[key], size_bytes=file.size_bytes, last_used_ms=last_used_ms, is_pinned=is_pinned)
        try:
            with self._reading(key) as (_, _, header):
                return SnapshotEntry(key, file.size_bytes, last_used_ms, header.meta, is_pinned=is_pinned)
        except SnapshotMissing:
            return None
        except SnapshotError as exc:
            return SnapshotEntry(key, file.size_bytes, last_used_ms, None, exc.message, is_pinned)


def _map(fd: int, key: str, size_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
    except OSError as exc:
        raise SnapshotError(
            f"Snapshot {key} ({format_bytes(size_bytes)}) cannot be mapped: {exc.strerror}."
        ) from exc
