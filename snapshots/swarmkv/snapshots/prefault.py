"""Touching a new mapping's pages ahead of its use, in the background.

Fresh pages are zeroed by the kernel as they are first touched, at about 1 GB/s; done while a
prefill still runs, the export that follows finds them ready. Nothing here changes a byte, so the
mapping may be written meanwhile.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading

logger = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # Linux 5.14
CHUNK_BYTES = 8 * 1024 * 1024  # how much may still be touched after `stop`


class Prefault:
    """Touches the pages of a writable mapping on a thread of its own, until done or stopped."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(mapping,), name="snapshot-prefault", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended and holds nothing of the mapping.

        Any number of times.
        """
        self._stop.set()
        self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all pages; whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, mapping: mmap.mmap) -> None:
        # ctypes, because mmap.madvise keeps the GIL for as long as the kernel zeroes pages.
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        for start in range(0, len(mapping), CHUNK_BYTES):
            if self._stop.is_set():
                return
            size_bytes = min(CHUNK_BYTES, len(mapping) - start)
            if madvise(address + start, size_bytes, MADV_POPULATE_WRITE) != 0:
                touch(mapping, start, size_bytes)


def touch(mapping: mmap.mmap, start: int, size_bytes: int) -> None:
    """Read one byte of every page: what a kernel without MADV_POPULATE_WRITE is left with."""
    with memoryview(mapping) as view, view[start : start + size_bytes : mmap.PAGESIZE] as pages:
        pages.tobytes()
