"""What both workers are: arq workers whose jobs are leased from the ledger.

Kept of arq: the job format in Redis, the limit on jobs, the running of a job's coroutine, its bookkeeping keys.
Replaced: how jobs are taken (one script for many, which also leases them), slow polling (a bell), and ending on a
lost connection (wait, then go on with the model still loaded).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

import arq.worker
from arq.connections import ArqRedis
from arq.utils import timestamp_ms
from redis.exceptions import RedisError

from swarmkv.protocol import keys
from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.ledger import Ledger, TakenBranch, TakenPrefill
from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.messages import WorkerInfo, WorkerState
from swarmkv.protocol.settings import Settings
from swarmkv.snapshots import SnapshotStore
from swarmkv.workers import outage
from swarmkv.workers.commands import Commands
from swarmkv.workers.doorbell import Doorbell
from swarmkv.workers.tasks import end_all
from swarmkv.workers.vitals import Vitals

logger = logging.getLogger(__name__)

STOPPING = "its worker is stopping"  # told to followers of a run
JOB_TIMEOUT_S = 366 * 86_400  # the run's deadline is what ends a job, not arq
Taken = TypeVar("Taken", TakenBranch, TakenPrefill)


def new_worker_id(role: Role) -> str:
    """A worker's id: role, host, pid, and a random part, since pids come again."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


class LeasedWorker(arq.worker.Worker, ABC, Generic[Taken]):
    """Takes jobs of one role and model, renews their leases, and gives back what it cannot finish.

    Subclasses say how to take and how to execute. `serve` runs until `stop` is called or a side task dies.
    """

    role: Role

    def __init__(
        self,
        redis: ArqRedis,
        ledger: Ledger,
        settings: Settings,
        info: WorkerInfo,
        store: SnapshotStore,
        vitals: Vitals,
        max_jobs: int,
    ) -> None:
        super().__init__(
            functions=[arq.worker.func(self._job, name=info.role)],
            queue_name=keys.key("queue", role=info.role, alias=info.model),
            redis_pool=redis,
            handle_signals=False,
            max_jobs=max_jobs,
            job_timeout=JOB_TIMEOUT_S,
            keep_result=0,
            log_results=False,
            job_serializer=pack,
            job_deserializer=unpack,
        )
        self.in_progress_timeout_s = settings.lease_s
        self.ledger = ledger
        self.settings = settings
        self.info = info
        self.also: dict[str, Callable[[], Awaitable[None]]] = {}  # side tasks that its process adds before `serve`
        self._vitals = vitals
        self.held: dict[str, Taken] = {}
        self.abandoned: set[str] = set()  # held jobs that are not ours any more
        self._unstarted: dict[str, Taken] = {}
        self._taking = asyncio.Lock()
        channel = keys.key("doorbell", role=info.role, alias=info.model)
        self.bell = Doorbell(redis, channel, self._control)
        self.commands = Commands(ledger, info.id, self, store, grace_s=settings.grace_s)
        self.grace_s = settings.grace_s
        self.on_drain: Callable[[float | None], None] = self._drain_alone
        self._is_paused = False
        self._stopping = asyncio.Event()
        self._beat_s: float | None = None  # when Redis took the last heartbeat
        self._spawned: set[asyncio.Task[None]] = set()

    # -- what a role adds

    @abstractmethod
    async def _take(self, limit: int) -> list[Taken]:
        """Lease up to `limit` jobs."""

    @abstractmethod
    async def _execute(self, taken: Taken) -> None:
        """Run one leased job to its recorded end."""

    @abstractmethod
    def _abandon(self, job_id: str) -> None:
        """Stop working on a job that is no longer this worker's."""

    def _room(self) -> int:
        """How many jobs may be taken now."""
        return self.max_jobs - self.job_counter

    def _side_tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Named coroutines that run beside the jobs for the worker's whole life."""
        return {
            "take": self._take_loop,
            "doorbell": self.bell.listen,
            "heartbeat": self._beat_loop,
            "sweep": self._sweep_loop,
            "commands": partial(self.commands.run, self.settings.heartbeat_s),
            **self.also,
        }

    # -- life

    async def serve(self) -> None:
        """Work until `stop`; raises what killed a side task, since nothing may go on half alive."""
        await self._announce()
        async with asyncio.TaskGroup() as group:
            side: list[asyncio.Task[None]] = [
                group.create_task(_run(work), name=f"{self.info.id}:{name}")
                for name, work in self._side_tasks().items()
            ]
            try:
                await self._stopping.wait()
                await self._wind_down()
            finally:
                await end_all([*side, *self.tasks.values()])
        await self._leave()

    @property
    def num_held(self) -> int:
        """Jobs that are leased to it now."""
        return len(self.held)

    @property
    def beat_age_s(self) -> float | None:
        """Time since Redis took a heartbeat; None before the first."""
        return None if self._beat_s is None else time.monotonic() - self._beat_s

    def stop(self) -> None:
        """Take no more jobs; `serve` returns once held ones are finished or handed back."""
        self.allow_pick_jobs = False
        self._stopping.set()

    # -- what it can be told

    @property
    def state(self) -> WorkerState:
        if self._stopping.is_set():
            return "draining"
        return "paused" if self._is_paused else "running"

    async def pause(self) -> None:
        """Take no more jobs. What was just being taken is held once this returns."""
        self._is_paused = True
        async with self._taking:
            pass
        await self._show_state()

    async def resume(self) -> None:
        """Take jobs again."""
        self._is_paused = False
        self.bell.ring()
        await self._show_state()

    def drain(self, grace_s: float | None) -> None:
        """Stop, with the whole process; `grace_s` None: in the time that SIGTERM gives, too."""
        self.on_drain(grace_s)

    def _drain_alone(self, grace_s: float | None) -> None:
        self.grace_s = self.grace_s if grace_s is None else grace_s
        self.stop()

    async def _show_state(self) -> None:
        """At once, not with the next heartbeat: who asked for a change looks for it."""
        try:
            await self._beat()
        except BrokerError as exc:
            logger.debug("no heartbeat: %s", exc.message, extra={"action": "beat_failed"})

    async def _announce(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._beat()
                return
            except BrokerError as exc:
                await outage.ride_out("waiting for Redis", exc, backoff)

    async def _wind_down(self) -> None:
        """Finish within the grace time, hand back the rest."""
        async with self._taking:
            pass  # jobs that were just being taken are held from here on
        if self.tasks:
            await self._show_state()
            await asyncio.wait(self.tasks.values(), timeout=self.grace_s)
        if unfinished := list(self.held):
            await self._hand_back_all(unfinished)
        for job_id in unfinished:
            self._let_go(job_id)
        if self.tasks:
            await asyncio.wait(self.tasks.values(), timeout=self.settings.grace_s)

    async def _hand_back_all(self, unfinished: list[str]) -> None:
        try:
            returned = await self.ledger.jobs.hand_back(self.info.id, unfinished, reason=STOPPING)
            logger.info("handed back %d jobs", returned, extra={"action": "jobs_handed_back"})
        except BrokerError as exc:
            logger.warning(
                "could not hand back %d jobs, their leases will run out: %s",
                len(unfinished),
                exc.message,
                extra={"action": "hand_back_failed"},
            )

    async def _leave(self) -> None:
        """After the last heartbeat, or it would put the worker back on the list."""
        try:
            await self.ledger.fleet.leave(self.info.id, reason=STOPPING)
        except BrokerError as exc:
            logger.debug("not signed off: %s", exc.message, extra={"action": "broker_lost"})

    # -- jobs

    async def _take_loop(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._poll_iteration()
            except (BrokerError, RedisError, OSError) as exc:
                await outage.ride_out("waiting for Redis", exc, backoff)
                continue
            backoff.reset()
            await self.bell.wait(self.settings.poll_s)

    async def _poll_iteration(self) -> None:
        """Replaces arq's: take as many jobs as there is room for, in one script."""
        async with self._taking:
            if self.allow_pick_jobs and not self._is_paused and (room := self._room()) > 0:
                for taken in await self._take(room):
                    self._start(taken)
        await self.heart_beat()

    def _start(self, taken: Taken) -> None:
        job_id = taken.job_id
        self.held[job_id] = self._unstarted[job_id] = taken
        self.job_counter += 1
        task = self.loop.create_task(self._run_leased(job_id), name=job_id)
        self.tasks[job_id] = task
        task.add_done_callback(lambda _: self._job_ended(job_id))

    def _job_ended(self, job_id: str) -> None:
        self.job_counter -= 1
        self.tasks.pop(job_id, None)
        self.bell.ring()

    async def _run_leased(self, job_id: str) -> None:
        try:
            await self._run_by_arq(job_id)
            # arq's keys were lost, or held something else: the ledger has leased us the job all the same.
            if (taken := self._unstarted.pop(job_id, None)) is not None:
                logger.warning("job %s is not known to arq", job_id, extra={"action": "job_keys_lost"})
                await self._execute(taken)
        finally:
            self._unstarted.pop(job_id, None)
            self.held.pop(job_id, None)
            self.abandoned.discard(job_id)

    async def _run_by_arq(self, job_id: str) -> None:
        try:
            await self.run_job(job_id, timestamp_ms())
        except Exception as exc:  # arq trusts what its keys hold, and anybody can write them
            logger.warning("job %s: %r", job_id, exc, extra={"action": "job_keys_lost", "job": job_id})

    async def _job(self, ctx: dict[str, Any], *_: object, **__: object) -> None:
        """The arq function. It never raises: the outcome is in the ledger, arq keeps no results."""
        taken = self._unstarted.pop(ctx["job_id"], None)
        if taken is not None:
            await self._execute(taken)

    # -- heartbeat, repair, control

    async def _beat_loop(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            try:
                await self._beat()
            except BrokerError as exc:
                logger.debug("no heartbeat: %s", exc.message, extra={"action": "beat_failed"})

    async def _beat(self) -> None:
        now = {"slots_used": len(self.held), "state": self.state}
        info = self._vitals.added_to(self.info).model_copy(update=now)
        held = list(self.held)
        for job_id in await self.ledger.fleet.beat(info, held, lease_ms=self.settings.lease_ms):
            if job_id in self.held:
                logger.info("job %s is no longer ours", job_id, extra={"action": "lease_lost", "job": job_id})
                self._let_go(job_id)
        self._beat_s = time.monotonic()

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_s * (0.75 + random.random() / 2))  # noqa: S311
            try:
                counts = await self.ledger.fleet.sweep(
                    max_solo_crashes=self.settings.max_solo_crashes, lease_ms=self.settings.lease_ms
                )
            except BrokerError:
                continue
            if counts.leases or counts.deadlines or counts.requeued:
                logger.info("swept %s", counts, extra={"action": "swept"})

    def _control(self, said: str) -> None:
        """The id of a job that is to end, or the bell of this worker's commands."""
        if said == keys.command_bell(self.info.id):
            self.commands.ring()
        elif said in self.held:
            self._let_go(said)

    def _let_go(self, job_id: str) -> None:
        self.abandoned.add(job_id)
        self._abandon(job_id)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """A short task that nobody waits for; what it could not tell Redis is dropped."""

        async def told() -> None:
            try:
                await work
            except BrokerError as exc:
                logger.debug("%s: %s", name, exc.message, extra={"action": "broker_lost"})

        task = self.loop.create_task(told(), name=f"{self.info.id}:{name}")
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)


AnyWorker = LeasedWorker[TakenBranch] | LeasedWorker[TakenPrefill]


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()
