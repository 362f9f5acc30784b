"""The store's directory: private to its user, with one lock, and temporary files that a dead writer
cannot keep.

Every call opens the directory anew and works relative to it, so that a directory that was removed
under a running worker (systemd's RemoveIPC does that to /dev/shm at logout) is made again, and one
that was replaced by somebody else's is refused.

A writer holds a lock (flock) on its temporary file for as long as it lives; the kernel drops it
when the process dies, however it dies. So whoever can take the lock knows that the file is
abandoned. A process id would not tell that: containers that share the directory have process ids of
their own.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from swarmkv.protocol.errors import ConfigError, SnapshotError
from swarmkv.snapshots.meta import KEY_PATTERN

logger = logging.getLogger(__name__)

SUFFIX = ".kv"
LOCK_NAME = ".lock"
LOCK_TIMEOUT_S = 10.0
LOCK_POLL_S = 0.002
MAX_SMALL_BYTES = 4096
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_TEMP_PATTERN = re.compile(r"\.\d+-[0-9a-f]{16}\.tmp")
# Never through a symbolic link; O_NONBLOCK so that a FIFO put in a snapshot's place cannot stop us.
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A snapshot or temporary file as the directory shows it."""

    name: str
    size_bytes: int
    last_used_ns: int

    @property
    def key(self) -> str | None:
        """None for a temporary file."""
        return self.name.removesuffix(SUFFIX) if self.name.endswith(SUFFIX) else None


class StoreDirectory:
    """A directory that only this user can enter. Safe to use from any thread and process."""

    def __init__(self, path: Path, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = path
        self._lock_timeout_s = lock_timeout_s

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the directory, made if it is not there.

        Raises ConfigError when it is not private.
        """
        fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """As `opened`, with no other process or thread inside `locked`.

        Hold it for moments only.
        """
        with self.opened() as dir_fd:
            lock = self._open_lock(dir_fd)
            try:
                self._take(lock)
                yield dir_fd
            finally:
                os.close(lock)

    def files(self, dir_fd: int) -> list[StoredFile]:
        """Snapshots and temporary files.

        Anything else in the directory is not ours and not looked at.
        """
        found = []
        for name in os.listdir(dir_fd):
            if _is_snapshot(name) or _TEMP_PATTERN.fullmatch(name):
                with suppress(FileNotFoundError):  # evicted or renamed since
                    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
                    found.append(StoredFile(name, status.st_size, status.st_atime_ns))
        return found

    def create_temp(self, dir_fd: int, size_bytes: int) -> TempFile:
        """A new temporary file of that size, its room not yet reserved. Call it inside `locked`."""
        name = _temp_name()
        fd = open_private(dir_fd, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        temp = TempFile(self, name, FileIO(fd, "r+"))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, size_bytes)
        except OSError:
            temp.remove()
            raise
        return temp

    def sweep(self, dir_fd: int) -> int:
        """Remove temporary files whose writer is dead.

        Gives their bytes. Call it inside `locked`.
        """
        freed_bytes = 0
        for file in self.files(dir_fd):
            if file.key is None and _is_abandoned(dir_fd, file.name):
                try:
                    os.unlink(file.name, dir_fd=dir_fd)
                except FileNotFoundError:  # its writer was just giving it up: it asks for no lock
                    continue
                freed_bytes += file.size_bytes
                logger.info(
                    "removed %s, whose writer is dead",
                    file.name,
                    extra={"action": "snapshot_swept", "size_bytes": file.size_bytes},
                )
        return freed_bytes

    def _open(self) -> int:
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=DIRECTORY_MODE, parents=True)
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            self._check_private(os.fstat(fd))
        except ConfigError:
            os.close(fd)
            raise
        return fd

    def _open_lock(self, dir_fd: int) -> int:
        try:
            return open_private(dir_fd, LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise self._unusable(exc, LOCK_NAME) from exc

    def _unusable(self, exc: OSError, name: str = "") -> ConfigError:
        return ConfigError(
            f"SWARMKV_STORE_DIR={self.path} cannot be used: {f'{name}: ' if name else ''}{exc.strerror}.",
            hint="Name a directory (not a symbolic link) that this user can write to.",
        )

    def _check_private(self, status: os.stat_result) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid():
            raise ConfigError(
                f"SWARMKV_STORE_DIR={self.path} belongs to user {status.st_uid}, this is user {os.geteuid()}.",
                hint="Run all workers as one user, or name a directory below it that does not exist yet.",
            )
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"SWARMKV_STORE_DIR={self.path} can be written by others (mode {mode:04o}).",
                hint=f"chmod 700 {self.path}",
            )

    def _take(self, lock: int) -> None:
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SnapshotError(
                        f"Another process holds {self.path / LOCK_NAME} for over {self._lock_timeout_s} s.",
                        hint="A worker on this store is stopped or stuck: end it.",
                    ) from None
                time.sleep(LOCK_POLL_S)
            except OSError as exc:  # a file system without locks
                raise self._unusable(exc, LOCK_NAME) from exc
            else:
                return


class TempFile:
    """A file being written, locked while it is open. End it by `publish` or `remove`."""

    def __init__(self, directory: StoreDirectory, name: str, file: FileIO) -> None:
        self._directory = directory
        self._name = name
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()

    def publish(self, key: str) -> None:
        """Give it its key's name in one step, in the place of what had it.

        Raises SnapshotError when that cannot be; the file is gone then.
        """
        name = key + SUFFIX
        try:
            # Under the lock: who counts the store's bytes must find this file by one name or the other.
            with self._directory.locked() as dir_fd:
                os.replace(self._name, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except OSError as exc:
            raise SnapshotError(
                f"Snapshot {key} could not be published in {self._directory.path}: {exc.strerror}."
            ) from exc
        finally:
            self.remove()

    def remove(self) -> None:
        """Close it, and unlink it if it still has its temporary name. Any number of times."""
        with suppress(FileNotFoundError, ConfigError), self._directory.opened() as dir_fd:
            os.unlink(self._name, dir_fd=dir_fd)
        self._file.close()


def open_snapshot(dir_fd: int, key: str) -> int:
    """A read-only descriptor of a snapshot's file.

    Raises FileNotFoundError, or OSError if it is no plain file.
    """
    if not KEY_PATTERN.fullmatch(key):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
    # O_NOATIME: the access time is ours, it says when the snapshot was last used.
    fd = open_private(dir_fd, key + SUFFIX, os.O_RDONLY | getattr(os, "O_NOATIME", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file")
    return fd


def read_small(dir_fd: int, name: str) -> str:
    """The text of a small file of ours; "" when it is absent or no such file."""
    try:
        fd = open_private(dir_fd, name, os.O_RDONLY)
    except OSError:
        return ""
    with FileIO(fd) as file:
        return os.read(file.fileno(), MAX_SMALL_BYTES).decode(errors="replace")


def write_small(dir_fd: int, name: str, text: str) -> None:
    """Write it whole or not at all. Call it inside `locked`. Raises OSError."""
    temp = _temp_name()
    with FileIO(open_private(dir_fd, temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text.encode())
    os.replace(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def open_private(dir_fd: int, name: str, flags: int) -> int:
    """A descriptor. Raises OSError; PermissionError for a file that others could have written, or still can.

    They can put files into a directory that anyone can write to and only owners can delete from: what containers
    mount as a tmpfs is of that kind.
    """
    fd = os.open(name, flags | _SAFE, FILE_MODE, dir_fd=dir_fd)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(fd)
        raise PermissionError(errno.EPERM, "another user owns it or can write to it")
    return fd


def _temp_name() -> str:
    return f".{os.getpid()}-{secrets.token_hex(8)}.tmp"


def _is_snapshot(name: str) -> bool:
    return name.endswith(SUFFIX) and KEY_PATTERN.fullmatch(name.removesuffix(SUFFIX)) is not None


def _is_abandoned(dir_fd: int, name: str) -> bool:
    try:
        fd = open_private(dir_fd, name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a link, or a file of a mode that we never give: no writer of ours made it
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
