"""How fast this machine copies memory: the yardstick of exports and restores."""

from __future__ import annotations

import mmap
from time import perf_counter

import numpy as np

GB = 1e9


def copy_gbps(size_bytes: int, *, fresh: bool = False) -> float:
    """GB/s of one copy into a mapping whose pages are there already, or of one that is `fresh`."""
    source, target = mmap.mmap(-1, size_bytes), mmap.mmap(-1, size_bytes)
    _touch(source)
    if not fresh:
        _touch(target)
    return size_bytes / copy_s(memoryview(source), memoryview(target)) / GB


def copy_s(source: memoryview, target: memoryview) -> float:
    """Seconds of one copy of all bytes of `source`."""
    taken, given = np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8)
    started_s = perf_counter()
    np.copyto(given[: len(taken)], taken)
    return perf_counter() - started_s


def _touch(mapping: mmap.mmap) -> None:
    """Give every page of a mapping memory of its own."""
    np.frombuffer(memoryview(mapping), np.uint8)[:: mmap.PAGESIZE] = 1
