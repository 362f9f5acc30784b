"""Branches that were taken together reach the engine together, so that their prompts share one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from swarmkv.workers.engine.jobs import BranchJob, Engine

WAIT_S = 0.05  # for stragglers: far less than the extra batch that each of them would cost


class Muster:
    """Holds jobs back until all that were taken with them are there, or excused, or have taken too long."""

    def __init__(self, engine: Engine, *, wait_s: float = WAIT_S) -> None:
        self._engine = engine
        self._wait_s = wait_s
        self._expected: set[str] = set()
        self._present: list[BranchJob] = []
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, job_ids: Iterable[str]) -> None:
        """These jobs are on their way; each will `arrive` or be `excused`."""
        self._expected.update(job_ids)

    def arrive(self, job: BranchJob) -> None:
        """A job is ready for the engine."""
        self._present.append(job)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._march)
        self.excuse(job.id)

    def excuse(self, job_id: str) -> None:
        """Do not wait for this job; it is here, or will not come. Any number of times."""
        self._expected.discard(job_id)
        if not self._expected and self._present:
            self._march()

    def withdraw(self, job_id: str) -> bool:
        """Take back a job that has not gone to the engine yet; False if it has, or is not here."""
        kept = [job for job in self._present if job.id != job_id]
        is_here = len(kept) < len(self._present)
        self._present = kept
        self.excuse(job_id)
        return is_here

    def _march(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs, self._present = self._present, []
        for job in jobs:
            self._engine.branch(job)
