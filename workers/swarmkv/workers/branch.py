"""The branch worker: as many branches at once as the engine has slots, each from a restored snapshot.

load (map the snapshot, compare identity and prefix) ─▶ admit (tokens, does it fit?)
  ─▶ execute (the engine restores once, forks, decodes all in one batch) ─▶ classify ─▶ record (once)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from arq.connections import ArqRedis

from swarmkv.protocol.errors import (
    BrokerError,
    EngineError,
    OutOfCells,
    SnapshotCorrupt,
    SnapshotError,
    SwarmkvError,
)
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch, error_info
from swarmkv.protocol.messages import (
    BranchResult,
    BranchTimings,
    Sampling,
    TokenCounts,
    WorkerInfo,
)
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.tracing import Tracing
from swarmkv.snapshots import Snapshot, SnapshotStore
from swarmkv.workers import outage
from swarmkv.workers.bridge import Ending, EngineBridge, Progress
from swarmkv.workers.engine.jobs import BranchEnded, BranchJob, BranchProgressed, Engine, JobCancelled, JobFailed
from swarmkv.workers.journal import Journal
from swarmkv.workers.leased import LeasedWorker
from swarmkv.workers.muster import Muster
from swarmkv.workers.opened import OpenSnapshots, discard
from swarmkv.workers.outbox import Outbox
from swarmkv.workers.traces import Traces
from swarmkv.workers.vitals import Vitals

logger = logging.getLogger(__name__)

WAIT_FOR_CELLS_MS = 500


class BranchWorker(LeasedWorker[TakenBranch]):
    """Takes branches of one model. The engine and the store are shared with the caller, who closes them."""

    role = "branch"

    def __init__(
        self,
        redis: ArqRedis,
        ledger: Ledger,
        settings: Settings,
        info: WorkerInfo,
        engine: Engine,
        bridge: EngineBridge,
        store: SnapshotStore,
        vitals: Vitals,
        tracing: Tracing,
    ) -> None:
        super().__init__(redis, ledger, settings, info, store, vitals, settings.slots)
        self._engine = engine
        self._bridge = bridge
        self._store = store
        self._snapshots = OpenSnapshots(store, keep=settings.residents)
        self._outbox = Outbox(ledger, info.id, flush_s=settings.flush_s)
        self._muster = Muster(engine)
        self._journal = Journal(info.id)
        self._traces = Traces(tracing, info.id, info.model)

    async def _take(self, limit: int) -> list[TakenBranch]:
        taken = await self.ledger.jobs.take_branches(
            self.info.model,
            self.info.id,
            limit=limit,
            lease_ms=self.settings.lease_ms,
            held=len(self.held),
            residents=self._snapshots.recent(),
        )
        self._muster.expect(item.job_id for item in taken)
        return taken

    def _room(self) -> int:
        return 0 if any(taken.is_solo for taken in self.held.values()) else super()._room()

    def _abandon(self, job_id: str) -> None:
        if self._muster.withdraw(job_id):
            self._bridge.emit([JobCancelled(job_id)])
        else:
            self._engine.cancel(job_id)

    def _side_tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {**super()._side_tasks(), "outbox": self._outbox.run, "tidy": self._tidy_loop}

    async def _tidy_loop(self) -> None:
        """A file that was evicted gives its room back only when nobody has it mapped any more."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            try:
                self._snapshots.drop_evicted()
            except (OSError, SwarmkvError) as exc:  # the directory is gone: opening a snapshot will say so
                logger.debug("store: %s", exc, extra={"action": "store_problem"})

    async def serve(self) -> None:
        """Work until `stop`; mappings are closed afterwards."""
        try:
            await super().serve()
        finally:
            self._snapshots.close()

    async def _execute(self, taken: TakenBranch) -> None:
        self._journal.branch_taken(taken)
        self._traces.begin_branch(taken)
        try:
            await self._run(taken)
        except SnapshotError as exc:
            await self._rebuild(taken, exc)
        except OutOfCells as exc:
            self._traces.note(taken.job_id, "no_cells", exc.code)
            await outage.record(partial(self._wait_for_cells, taken))
        except BrokerError as exc:
            logger.warning("branch %s: %s", taken.job_id, exc, extra={"action": "broker_lost"})
        except SwarmkvError as exc:
            await self._record(taken, _failure(taken, exc))
        except Exception as exc:  # a bug of ours: the branch must still end, with a reason
            logger.exception("branch %s", taken.job_id, extra={"action": "branch_bug"})
            error = EngineError(f"The branch failed unexpectedly: {type(exc).__name__}.")
            await self._record(taken, _failure(taken, error))
        finally:
            self._muster.excuse(taken.job_id)
            self._outbox.drop(taken.job_id)
            self._traces.end(taken.job_id)

    async def _run(self, taken: TakenBranch) -> None:
        start_s = time.monotonic()
        async with self._snapshots.lease(taken.snapshot) as snapshot:
            job = await asyncio.to_thread(self._admit, taken, snapshot)
            if job is None or taken.job_id in self.abandoned:
                return
            ending = self._bridge.expect(taken.job_id, partial(self._progressed, taken, start_s))
            load_ms = (time.monotonic() - start_s) * 1000
            self._traces.loaded(taken.job_id)
            self._muster.arrive(job)
            try:
                event = await ending
            except asyncio.CancelledError:
                self._abandon(taken.job_id)
                raise
        outcome = self._classify(taken, event, job.prefix_tokens, len(job.prompt), load_ms)
        if outcome is not None:
            await self._record(taken, outcome)

    def _admit(self, taken: TakenBranch, snapshot: Snapshot) -> BranchJob | None:
        """Off the loop: a long text takes its time, and a prefill beside us may hold the tokenizer for seconds.

        None for a branch that was given up while it waited for the tokenizer.
        """
        if taken.job_id in self.abandoned:
            return None
        self._check(taken, snapshot)
        return self._job_of(taken, snapshot)

    def _check(self, taken: TakenBranch, snapshot: Snapshot) -> None:
        """The snapshot suits this engine, and holds this very prefix. Raises SnapshotMismatch."""
        info, prefix = self._engine.info, taken.prefix
        digest = self._engine.prefix_digest(prefix.system, prefix.document, prefix.template)
        snapshot.meta.check(identity=info.identity, layout=info.layout, prefix_digest=digest)

    def _job_of(self, taken: TakenBranch, snapshot: Snapshot) -> BranchJob:
        return BranchJob(
            id=taken.job_id,
            snapshot=taken.snapshot,
            payload=snapshot.payload,
            prefix_tokens=snapshot.meta.prefix_tokens,
            prompt=self._engine.suffix_tokens(taken.spec.prompt, taken.prefix.template),
            sampling=self._sampling(taken),
            solo=taken.is_solo,
        )

    def _sampling(self, taken: TakenBranch) -> Sampling:
        sampling = taken.spec.sampling
        if sampling.stop or sampling.ignore_eos:  # who wants no end wants no stop text either
            return sampling
        return sampling.model_copy(update={"stop": self._engine.default_stop(taken.prefix.template)})

    def _progressed(self, taken: TakenBranch, start_s: float, event: Progress) -> None:
        assert isinstance(event, BranchProgressed)
        if self._outbox.text(taken, event.text):
            self._journal.branch_first_token(taken, (time.monotonic() - start_s) * 1000)

    def _classify(
        self, taken: TakenBranch, event: Ending, prefix_tokens: int, prompt_tokens: int, load_ms: float
    ) -> Outcome | None:
        """What the engine's last word means; None when the branch is no longer ours. Raises what failed it."""
        if isinstance(event, JobFailed):
            raise event.error
        if not isinstance(event, BranchEnded):
            return None
        result = BranchResult(
            text=event.text,
            finish_reason=event.finish_reason,
            tokens=TokenCounts(
                reused=prefix_tokens - event.recomputed,
                recomputed=event.recomputed,
                prompt=prompt_tokens,
                generated=event.generated,
            ),
            timings_ms=BranchTimings(
                queue=taken.queue_ms,
                restore=event.restore_ms,
                prompt=load_ms + event.prompt_ms,
                first_token=load_ms + event.first_token_ms,
                decode=event.decode_ms,
                total=load_ms + event.total_ms,
            ),
        )
        return Outcome(taken, "done", result)

    async def _record(self, taken: TakenBranch, outcome: Outcome) -> None:
        try:
            is_written = await self._outbox.finish(outcome)
        except BrokerError as exc:  # the job's lease will run out
            logger.warning("branch %s is not recorded: %s", taken.job_id, exc, extra={"action": "broker_refused"})
            return
        if is_written:
            self._journal.branch_ended(outcome)
            self._traces.finished(outcome)
        else:
            self._traces.note(taken.job_id, "refused")
            logger.info("a newer attempt has branch %s", taken.job_id, extra={"action": "result_refused"})

    async def _rebuild(self, taken: TakenBranch, error: SnapshotError) -> None:
        logger.warning("snapshot of %s is unusable: %s", taken.job_id, error, extra={"action": "snapshot_unusable"})
        self._traces.note(taken.job_id, "rebuild", error.code)
        self._snapshots.forget(taken.snapshot)
        if isinstance(error, SnapshotCorrupt):
            await discard(self._store, taken.snapshot)
        rebuild = self.ledger.jobs.rebuild
        await outage.record(lambda: rebuild(self.info.id, taken, error, max_rebuilds=self.settings.max_rebuilds))

    async def _wait_for_cells(self, taken: TakenBranch) -> None:
        await self.ledger.jobs.hand_back(
            self.info.id, [taken.job_id], reason="no cells were free", delay_ms=WAIT_FOR_CELLS_MS
        )


def _failure(taken: TakenBranch, error: SwarmkvError) -> Outcome:
    result = BranchResult(
        finish_reason="error",
        error=error_info(error),
        timings_ms=BranchTimings(queue=taken.queue_ms),
    )
    return Outcome(taken, "failed", result)
