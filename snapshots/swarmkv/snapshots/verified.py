"""Which files this process has verified, so that each is read through once."""

from __future__ import annotations

import os
import threading

from swarmkv.snapshots.format import Header

MAX_REMEMBERED = 4096

_Identity = tuple[int, int, int, int, bytes]


class VerifiedFiles:
    """A bounded memory of verified files, the oldest forgotten first.

    A published file is never written again; the header's checksum is part of its identity because
    file systems reuse inode numbers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Identity, None] = {}

    def knows(self, status: os.stat_result, header: Header) -> bool:
        with self._lock:
            return _identity(status, header) in self._known

    def add(self, status: os.stat_result, header: Header) -> None:
        with self._lock:
            self._known[_identity(status, header)] = None
            if len(self._known) > MAX_REMEMBERED:
                del self._known[next(iter(self._known))]


def _identity(status: os.stat_result, header: Header) -> _Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, header.checksum)
