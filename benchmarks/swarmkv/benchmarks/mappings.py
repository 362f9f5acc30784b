"""Memory to export into and to copy: mapped files as the snapshot store has them, and the yardstick, memcpy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from swarmkv.benchmarks.processes import memory_bytes, reset_peak

GB = 1e9


@contextmanager
def fresh_file(directory: Path, size_bytes: int) -> Iterator[memoryview]:
    """A mapped file whose pages do not exist yet; gone afterwards. Drop what views it before."""
    path = directory / f"fresh-{os.getpid()}"
    with path.open("xb+") as file:
        path.unlink()
        file.truncate(size_bytes)
        with mapped(file.fileno(), size_bytes) as view:
            yield view


@contextmanager
def mapped(descriptor: int, size_bytes: int, *, read_only: bool = False) -> Iterator[memoryview]:
    """A file in memory; -1: memory without a file."""
    access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
    with mmap.mmap(descriptor, size_bytes, access=access) as mapping, memoryview(mapping) as view:
        yield view


@contextmanager
def anonymous(size_bytes: int) -> Iterator[memoryview]:
    """Memory like that of KV cells, all pages there."""
    with mapped(-1, size_bytes) as view:
        touch(view)
        yield view


def touch(view: memoryview) -> None:
    """Give every page memory of its own."""
    np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE] = 1


def read_through(view: memoryview) -> int:
    """Read every page, as the check of a snapshot does."""
    return int(np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE].sum())


def copy_s(source: memoryview, target: memoryview) -> float:
    """Seconds to copy all bytes of `source` to the beginning of `target`."""
    taken, given = np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8)
    started_s = perf_counter()
    np.copyto(given[: len(taken)], taken)
    return perf_counter() - started_s


def copy_gbps(size_bytes: int) -> float:
    """GB/s of one copy between memory whose pages are all there."""
    with anonymous(size_bytes) as source, anonymous(size_bytes) as target:
        return size_bytes / copy_s(source, target) / GB


class Peak:
    """How much more memory this process had at its highest than at the start of the block."""

    def __enter__(self) -> Peak:
        reset_peak()
        self._before = memory_bytes("self")
        self.grown_bytes = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.grown_bytes = memory_bytes("self", "VmHWM") - self._before
