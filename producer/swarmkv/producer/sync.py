"""The producer for code without an event loop: the same shape, blocking.

One private loop runs on one thread; every call is a coroutine sent there. Not for use inside a running loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from swarmkv.producer.handle import RunHandle
from swarmkv.producer.producer import Producer
from swarmkv.producer.validate import BranchLike
from swarmkv.protocol.commands import Answer, Command
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.events import Event, RunWarning
from swarmkv.protocol.ledger import LiveWorker, RunSummary
from swarmkv.protocol.ledger.commands import DEFAULT_TIMEOUT_S
from swarmkv.protocol.messages import DeadBranch, RunReport, StoreInfo
from swarmkv.protocol.settings import Settings

T = TypeVar("T")


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarmkv-sync", daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_stopped:
            work.close()
            raise ConfigError("This producer is closed.", hint="Open a new SyncProducer.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting must not leave the coroutine behind
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncRunHandle:
    """RunHandle, blocking."""

    def __init__(self, loop: _LoopThread, handle: RunHandle) -> None:
        self._loop = loop
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        return self._handle.warnings

    def report(self) -> RunReport:
        """See RunHandle.report."""
        return self._loop.call(self._handle.report())

    def so_far(self) -> RunReport:
        """See RunHandle.so_far."""
        return self._loop.call(self._handle.so_far())

    def results(self, timeout_s: float | None = None) -> RunReport:
        """See RunHandle.results."""
        return self._loop.call(self._handle.results(timeout_s))

    def events(self) -> Iterator[Event]:
        """See RunHandle.events."""
        stream = self._handle.events()
        try:
            while True:
                try:
                    yield self._loop.call(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_stopped:
                self._loop.call(_close(stream))

    def cancel(self, *branches: str) -> bool:
        """See RunHandle.cancel."""
        return self._loop.call(self._handle.cancel(*branches))

    def retry(
        self, *, only_failed: bool = False, branches: Sequence[str] = (), deadline_s: float | None = None
    ) -> tuple[str, ...]:
        """See RunHandle.retry."""
        return self._loop.call(
            self._handle.retry(only_failed=only_failed, branches=branches, deadline_s=deadline_s)
        )


async def _next(stream: Any) -> Event:
    event: Event = await anext(stream)
    return event


async def _close(stream: Any) -> None:
    await stream.aclose()


class SyncProducer:
    """Producer, blocking; a context manager that owns its thread and connections."""

    def __init__(self, redis_url: str | None = None, settings: Settings | None = None) -> None:
        self._loop = _LoopThread()
        try:
            self._producer = self._loop.call(_make(redis_url, settings))
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Any number of times."""
        if not self._loop.is_stopped:
            self._loop.call(self._producer.close())
            self._loop.stop()

    def submit(self, document: str | bytes, branches: Sequence[BranchLike], **options: Any) -> SyncRunHandle:
        """See Producer.submit; `options` are its keyword arguments."""
        handle = self._loop.call(self._producer.submit(document, branches, **options))
        return SyncRunHandle(self._loop, handle)

    def run(self, run_id: str) -> SyncRunHandle:
        """See Producer.run."""
        return SyncRunHandle(self._loop, self._producer.run(run_id))

    def runs(self, limit: int = 20) -> list[RunSummary]:
        """See Producer.runs."""
        return self._loop.call(self._producer.runs(limit))

    def dead(self) -> list[DeadBranch]:
        """See Producer.dead."""
        return self._loop.call(self._producer.dead())

    def dead_branch(self, entry: str) -> DeadBranch:
        """See Producer.dead_branch."""
        return self._loop.call(self._producer.dead_branch(entry))

    def drop_dead(self, entries: Sequence[DeadBranch]) -> int:
        """See Producer.drop_dead."""
        return self._loop.call(self._producer.drop_dead(entries))

    def workers(self) -> list[LiveWorker]:
        """See Producer.workers."""
        return self._loop.call(self._producer.workers())

    def tell(self, to: str, command: Command, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        """See Producer.tell."""
        return self._loop.call(self._producer.tell(to, command, timeout_s=timeout_s))

    def stores(self) -> list[StoreInfo]:
        """See Producer.stores."""
        return self._loop.call(self._producer.stores())


async def _make(redis_url: str | None, settings: Settings | None) -> Producer:
    return Producer(redis_url, settings)
