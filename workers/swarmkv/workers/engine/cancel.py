"""Cancelling across threads: a running decode stops as soon as nobody wants its batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from swarmkv.workers.engine.context import AbortFlag


class CancelBoard:
    """Which jobs are asked to end, and for which the engine decodes now. Thread-safe.

    A batch that others share is not aborted: it lasts one step, and they would lose it.
    """

    def __init__(self, abort: AbortFlag) -> None:
        self._abort = abort
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._decoding: frozenset[str] = frozenset()
        self._closing = False

    def ask(self, job_id: str) -> None:
        """From any thread: end this job."""
        with self._lock:
            self._asked.add(job_id)
            self._abort_if_unwanted()

    def ask_all(self) -> None:
        """From any thread: end everything, for good."""
        with self._lock:
            self._closing = True
            self._abort_if_unwanted()

    def settle(self, job_id: str) -> None:
        """From the engine's thread: the request was dealt with."""
        with self._lock:
            self._asked.discard(job_id)

    @contextmanager
    def decoding(self, job_ids: frozenset[str]) -> Iterator[None]:
        """On the engine's thread, around a decode for these jobs."""
        with self._lock:
            self._decoding = job_ids
            self._abort_if_unwanted()
        try:
            yield
        finally:
            with self._lock:
                self._decoding = frozenset()
                self._abort.clear()

    def _abort_if_unwanted(self) -> None:
        if self._decoding and (self._closing or self._decoding <= self._asked):
            self._abort.set()
