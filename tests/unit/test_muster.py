"""Branches that were taken together reach the engine together; none waits for one that will not come."""

from __future__ import annotations

import numpy as np

from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.jobs import BranchJob
from swarmkv.workers.muster import Muster
from tests.waiting import eventually

LONG_S = 3600.0


class Recorder:
    """The one method of an engine that a muster calls."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def branch(self, job: BranchJob) -> None:
        self.jobs.append(job.id)


def job(job_id: str) -> BranchJob:
    return BranchJob(job_id, "snapshot", memoryview(b""), 1, np.ones(1, np.int32), Sampling())


def muster_of(engine: Recorder, wait_s: float = LONG_S) -> Muster:
    return Muster(engine, wait_s=wait_s)  # type: ignore[arg-type]


async def test_jobs_wait_until_all_that_were_taken_with_them_are_there() -> None:
    engine = Recorder()
    muster = muster_of(engine)
    muster.expect(["a", "b", "c"])
    muster.arrive(job("b"))
    muster.arrive(job("a"))
    assert engine.jobs == []
    muster.arrive(job("c"))
    assert engine.jobs == ["b", "a", "c"]


async def test_a_job_that_will_not_come_is_not_waited_for() -> None:
    engine = Recorder()
    muster = muster_of(engine)
    muster.expect(["a", "b"])
    muster.arrive(job("a"))
    muster.excuse("b")
    assert engine.jobs == ["a"]


async def test_a_straggler_holds_the_others_up_for_a_bounded_time() -> None:
    engine = Recorder()
    muster = muster_of(engine, wait_s=0.01)
    muster.expect(["a", "late"])
    muster.arrive(job("a"))

    async def marched() -> bool:
        return engine.jobs == ["a"]

    await eventually(marched)
    muster.arrive(job("late"))
    assert engine.jobs == ["a", "late"]


async def test_a_withdrawn_job_never_reaches_the_engine_and_frees_the_others() -> None:
    engine = Recorder()
    muster = muster_of(engine)
    muster.expect(["a", "b", "c"])
    muster.arrive(job("a"))
    muster.arrive(job("b"))
    assert muster.withdraw("a")
    assert not muster.withdraw("c")
    assert engine.jobs == ["b"]
    assert not muster.withdraw("b")
