"""The prefill worker: one document at a time through the engine, into a snapshot, to all who wait for it.

load (text, tokens) ─▶ admit (does it fit?) ─▶ execute (decode, export into the mapped file)
                                              ─▶ publish (rename) ─▶ record (register, release waiters)
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from arq.connections import ArqRedis

from swarmkv.protocol.errors import (
    BrokerError,
    EngineError,
    OutOfCells,
    PrefixTooLong,
    SnapshotError,
    SnapshotMissing,
    StoreFull,
    SwarmkvError,
)
from swarmkv.protocol.events import PrefillProgress
from swarmkv.protocol.ledger import Ledger, TakenPrefill
from swarmkv.protocol.messages import SnapshotInfo, WorkerInfo
from swarmkv.protocol.settings import Settings
from swarmkv.snapshots import SnapshotMeta, SnapshotStore, SnapshotTooLarge, SnapshotWriter, snapshot_key
from swarmkv.workers.bridge import EngineBridge, Progress
from swarmkv.workers.engine.jobs import (
    Engine,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillJob,
    PrefillProgressed,
    Tokens,
)
from swarmkv.workers.leased import LeasedWorker

logger = logging.getLogger(__name__)

MAX_JOBS = 1  # a second prefill in the same context would only share the first one's cores
WAIT_FOR_ROOM_MS = 2_000
MIN_BRANCH_TOKENS = 2  # one of a prompt, one of an answer


@dataclass(frozen=True, slots=True)
class _Plan:
    """A prefill that is known to fit."""

    tokens: Tokens
    token_bytes: bytes
    key: str
    prefix_digest: str


class PrefillWorker(LeasedWorker[TakenPrefill]):
    """Takes prefills of one model. The engine and the store are shared with the caller, who closes them."""

    role = "prefill"

    def __init__(
        self,
        redis: ArqRedis,
        ledger: Ledger,
        settings: Settings,
        info: WorkerInfo,
        engine: Engine,
        bridge: EngineBridge,
        store: SnapshotStore,
    ) -> None:
        super().__init__(redis, ledger, settings, info, MAX_JOBS)
        self._engine = engine
        self._bridge = bridge
        self._store = store

    async def _take(self, limit: int) -> list[TakenPrefill]:
        return await self.ledger.jobs.take_prefills(
            self.info.model, self.info.id, limit=limit, lease_ms=self.settings.lease_ms
        )

    def _abandon(self, job_id: str) -> None:
        self._engine.cancel(job_id)

    async def _execute(self, taken: TakenPrefill) -> None:
        try:
            plan = await self._load(taken)
            info, decoded = await self._stored(plan), False
            if info is None:
                info, decoded = await self._decode(taken, plan), True
            if info is not None:
                await self._record(taken, info, decoded=decoded)
        except StoreFull as exc:
            await self._no_room(taken, exc)
        except OutOfCells:
            await self._hand_back(taken, "no cells were free")
        except BrokerError as exc:
            logger.warning("prefill %s: %s", taken.prefix_id, exc, extra={"action": "broker_lost"})
        except SwarmkvError as exc:
            await self._fail(taken, exc)
        except Exception as exc:  # a bug of ours: the run must still end, with a reason
            logger.exception("prefill %s", taken.prefix_id, extra={"action": "prefill_bug"})
            await self._fail(taken, EngineError(f"The prefill failed unexpectedly: {exc!r}."))

    # -- load and admit

    async def _load(self, taken: TakenPrefill) -> _Plan:
        spec = taken.spec
        data = await self.ledger.jobs.document(spec.document)
        if data is None:
            raise SwarmkvError("The document is no longer in Redis.", hint="Submit the run again.")
        tokens = await asyncio.to_thread(self._engine.prefix_tokens, spec.system, data.decode(), spec.template)
        await self._check_fits(len(tokens))
        token_bytes = tokens.astype("<i4").tobytes()
        return _Plan(
            tokens=tokens,
            token_bytes=token_bytes,
            key=snapshot_key(self._engine.info.identity, token_bytes),
            prefix_digest=self._engine.prefix_digest(spec.system, spec.document, spec.template),
        )

    async def _check_fits(self, prefix_tokens: int) -> None:
        capacity = min(self._engine.info.n_ctx, await self._branch_capacity())
        budget = capacity - MIN_BRANCH_TOKENS
        if prefix_tokens > budget:
            raise PrefixTooLong(
                f"The document has {prefix_tokens:,} tokens with its template; the context of {capacity:,} "
                f"leaves {budget:,} for it.",
                hint="Shorten the document, or raise SWARMKV_N_CTX on prefill and branch workers.",
            )

    async def _branch_capacity(self) -> int:
        """The smallest real context that live branch workers of this model announce."""
        live = await self.ledger.fleet.workers()
        sizes = [
            item.info.n_ctx
            for item in live
            if item.info.role == "branch" and item.info.model == self.info.model and item.info.n_ctx
        ]
        return min(sizes, default=self._engine.info.n_ctx)

    async def _stored(self, plan: _Plan) -> SnapshotInfo | None:
        """The snapshot if the store has it already, from before a restart or under another document id."""
        try:
            snapshot = await asyncio.to_thread(self._store.open, plan.key)
        except SnapshotMissing:
            return None
        except SnapshotError as exc:
            logger.warning("%s", exc, extra={"action": "snapshot_refused", "snapshot": plan.key})
            self._store.remove(plan.key)
            return None
        with snapshot:
            if bytes(snapshot.tokens) != plan.token_bytes or snapshot.meta.prefix_digest != plan.prefix_digest:
                return None
            return self._info(snapshot.meta)

    # -- execute and record

    async def _decode(self, taken: TakenPrefill, plan: _Plan) -> SnapshotInfo | None:
        """Run the prefill; None when it was cancelled."""
        pinned = await self.ledger.jobs.pinned_snapshots()
        before = {entry.key for entry in await asyncio.to_thread(self._store.ls)}
        export = _Export(self._store, len(plan.token_bytes), pinned)
        ending = self._bridge.expect(taken.job_id, partial(self._progressed, taken, len(plan.tokens)))
        self._engine.prefill(PrefillJob(taken.job_id, plan.tokens, export.reserve))
        try:
            event = await ending
            if isinstance(event, JobCancelled):
                return None
            if isinstance(event, JobFailed):
                raise event.error
            assert isinstance(event, PrefillExported)
            meta = await asyncio.to_thread(export.publish, self._meta(event, plan), plan.token_bytes)
        finally:
            export.discard()
        await self._forget_evicted(before)
        logger.info(
            "prefilled %d tokens in %.0f ms",
            len(plan.tokens),
            event.prefill_ms,
            extra={"action": "prefilled", "snapshot": meta.key, "export_ms": event.export_ms},
        )
        return self._info(meta)

    def _meta(self, event: PrefillExported, plan: _Plan) -> SnapshotMeta:
        info = self._engine.info
        return SnapshotMeta(
            identity=info.identity,
            layout=info.layout,
            prefix_digest=plan.prefix_digest,
            architecture=info.architecture,
            prefill_ms=event.prefill_ms,
            payload_bytes=event.size_bytes,
        )

    def _info(self, meta: SnapshotMeta) -> SnapshotInfo:
        return SnapshotInfo(
            snapshot=meta.key,
            prefix_tokens=meta.prefix_tokens,
            size_bytes=meta.payload_bytes,
            prefill_ms=meta.prefill_ms,
            identity=meta.identity,
            host=self.info.host,
        )

    async def _forget_evicted(self, before: set[str]) -> None:
        after = {entry.key for entry in await asyncio.to_thread(self._store.ls)}
        if evicted := before - after:
            await self.ledger.jobs.forget_snapshots(sorted(evicted))

    async def _record(self, taken: TakenPrefill, info: SnapshotInfo, *, decoded: bool) -> None:
        held = await self.ledger.jobs.register(
            self.info.id, taken, info, decoded=decoded, ttl_ms=self.settings.result_ttl_ms
        )
        if not held:
            logger.info("prefill %s was no longer ours", taken.prefix_id, extra={"action": "lease_lost"})

    async def _no_room(self, taken: TakenPrefill, exc: StoreFull) -> None:
        if isinstance(exc, SnapshotTooLarge):
            await self._fail(taken, exc)
            return
        logger.warning("prefill waits for room: %s", exc, extra={"action": "store_full"})
        await self._hand_back(taken, exc.message)

    async def _hand_back(self, taken: TakenPrefill, reason: str) -> None:
        await self._guarded(
            self.ledger.jobs.hand_back(self.info.id, [taken.job_id], reason=reason, delay_ms=WAIT_FOR_ROOM_MS)
        )

    async def _fail(self, taken: TakenPrefill, error: SwarmkvError) -> None:
        logger.warning("prefill failed: %s", error, extra={"action": "prefill_failed"})
        await self._guarded(self.ledger.jobs.fail_prefill(self.info.id, taken, error))

    # -- progress

    def _progressed(self, taken: TakenPrefill, total_tokens: int, event: Progress) -> None:
        assert isinstance(event, PrefillProgressed)
        self.spawn(self._tell_progress(taken, event.done_tokens, total_tokens), name="progress")

    async def _tell_progress(self, taken: TakenPrefill, done_tokens: int, total_tokens: int) -> None:
        event = PrefillProgress(done_tokens=done_tokens, total_tokens=total_tokens)
        runs = await self.ledger.jobs.waiting_runs(taken.prefix_id)
        await self.ledger.jobs.emit({run: [event] for run in runs})


class _Export:
    """The reserved file of one prefill. `reserve` is called on the engine's thread, the rest on the loop's."""

    def __init__(self, store: SnapshotStore, token_bytes: int, pinned: frozenset[str]) -> None:
        self._store = store
        self._token_bytes = token_bytes
        self._pinned = pinned
        self._writer: SnapshotWriter | None = None

    def reserve(self, size_bytes: int) -> memoryview:
        self._writer = self._store.reserve(size_bytes, self._token_bytes, pinned=self._pinned)
        return self._writer.payload

    def publish(self, meta: SnapshotMeta, tokens: bytes) -> SnapshotMeta:
        assert self._writer is not None
        return self._writer.publish(meta, tokens)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
