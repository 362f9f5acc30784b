"""Between the engine's thread and the event loop: engine events become futures and callbacks of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchProgressed,
    EngineDied,
    EngineEvent,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillProgressed,
)

Ending = PrefillExported | BranchEnded | JobFailed | JobCancelled
Progress = PrefillProgressed | BranchProgressed


class EngineBridge:
    """Delivers each job's progress to its callback and its ending to its future.

    `emit` is called by the engine's thread, everything else by the loop's. `died` is set to the error when the
    engine's thread has ended by itself: the worker then ends too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._endings: dict[str, asyncio.Future[Ending]] = {}
        self._progress: dict[str, Callable[[Progress], None]] = {}
        self.died: asyncio.Future[Exception] = loop.create_future()

    def emit(self, events: list[EngineEvent]) -> None:
        """Hand events over to the loop; nothing is delivered once the loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def expect(self, job_id: str, progress: Callable[[Progress], None]) -> asyncio.Future[Ending]:
        """The future ending of a job; call before the job is given to the engine."""
        future: asyncio.Future[Ending] = self._loop.create_future()
        self._endings[job_id] = future
        self._progress[job_id] = progress
        return future

    def _deliver(self, events: list[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, EngineDied):
                if not self.died.done():
                    self.died.set_result(event.error)
            elif isinstance(event, PrefillProgressed | BranchProgressed):
                if (progress := self._progress.get(event.id)) is not None:
                    progress(event)
            else:
                self._end(event)

    def _end(self, event: Ending) -> None:
        self._progress.pop(event.id, None)
        future = self._endings.pop(event.id, None)
        if future is not None and not future.done():
            future.set_result(event)
