"""The prefill worker: one document at a time through the engine, into a snapshot, to all who wait for it.

load (text, tokens) ─▶ admit (does it fit?) ─▶ execute (decode, export into the mapped file)
                                              ─▶ publish (rename) ─▶ record (register, release waiters)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from arq.connections import ArqRedis

from swarmkv.protocol.errors import (
    BrokerError,
    EngineError,
    InvalidDocument,
    OutOfCells,
    PrefixTooLong,
    SnapshotError,
    SnapshotMissing,
    StoreFull,
    SwarmkvError,
)
from swarmkv.protocol.events import PrefillProgress, RunWarning
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, TakenPrefill
from swarmkv.protocol.messages import PrefixSpec, SnapshotInfo, WorkerInfo
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.tracing import Tracing
from swarmkv.snapshots import SnapshotMeta, SnapshotStore, SnapshotTooLarge, SnapshotWriter, snapshot_key
from swarmkv.workers import outage
from swarmkv.workers.bridge import EngineBridge, Progress
from swarmkv.workers.engine.jobs import (
    Engine,
    JobFailed,
    PrefillExported,
    PrefillJob,
    PrefillProgressed,
    Tokens,
)
from swarmkv.workers.journal import Journal
from swarmkv.workers.leased import LeasedWorker
from swarmkv.workers.opened import discard
from swarmkv.workers.traces import Traces
from swarmkv.workers.vitals import Vitals

logger = logging.getLogger(__name__)

MAX_JOBS = 1  # a second prefill in the same context would only share the first one's cores
WAIT_FOR_ROOM_MS = 2_000
MAX_SIZES = 256
MIN_BRANCH_TOKENS = 2  # one of a prompt, one of an answer


@dataclass(frozen=True, slots=True)
class _Plan:
    """A tokenised prefix and where its snapshot goes."""

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
        vitals: Vitals,
        tracing: Tracing,
    ) -> None:
        super().__init__(redis, ledger, settings, info, store, vitals, MAX_JOBS)
        self._engine = engine
        self._bridge = bridge
        self._store = store
        self._journal = Journal(info.id)
        self._traces = Traces(tracing, info.id, info.model)
        self._warned: set[str] = set()  # runs that were told that they wait for room
        self._known_pins: frozenset[str] = frozenset()
        self._short_of: dict[str, int] = {}  # bytes that found no room, by snapshot

    async def _take(self, limit: int) -> list[TakenPrefill]:
        return await self.ledger.jobs.take_prefills(
            self.info.model, self.info.id, limit=limit, lease_ms=self.settings.lease_ms
        )

    def _abandon(self, job_id: str) -> None:
        self._engine.cancel(job_id)

    async def _execute(self, taken: TakenPrefill) -> None:
        self._traces.begin_prefill(taken)
        try:
            plan = await self._load(taken)
            info, decoded = await self._stored(plan), False
            if info is not None:
                self._traces.prefilled(taken.job_id, info.snapshot, info.prefix_tokens, export_ms=None)
            else:
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
            await self._fail(taken, EngineError(f"The prefill failed unexpectedly: {type(exc).__name__}."))
        finally:
            self._traces.end(taken.job_id)

    # -- load and admit

    async def _load(self, taken: TakenPrefill) -> _Plan:
        spec = taken.spec
        data = await outage.patiently(lambda: self.ledger.jobs.document(spec.document))
        if data is None:
            raise SwarmkvError("The document is no longer in Redis.", hint="Submit the run again.")
        plan = await asyncio.to_thread(self._tokenised, spec, data)
        await self._check_fits(len(plan.tokens))
        return plan

    def _tokenised(self, spec: PrefixSpec, data: bytes) -> _Plan:
        if digest_bytes(data) != spec.document:
            raise InvalidDocument(
                f"The document in Redis ({len(data):,} bytes) is not the one that was submitted.",
                hint="Somebody else has written to it. Submit the run again.",
            )
        tokens = self._engine.prefix_tokens(spec.system, data.decode(), spec.template)
        token_bytes = tokens.astype("<i4").tobytes()
        prefix_digest = self._engine.prefix_digest(spec.system, spec.document, spec.template)
        return _Plan(
            tokens=tokens,
            token_bytes=token_bytes,
            key=snapshot_key(self._engine.info.identity, prefix_digest, token_bytes),
            prefix_digest=prefix_digest,
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
        live = await outage.patiently(self.ledger.fleet.workers)
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
            await discard(self._store, plan.key)
            return None
        with snapshot:
            return self._info(snapshot.meta) if snapshot.tokens == plan.token_bytes else None

    # -- execute and record

    async def _decode(self, taken: TakenPrefill, plan: _Plan) -> SnapshotInfo | None:
        """Run the prefill; None when it was cancelled."""
        before = {entry.key for entry in await asyncio.to_thread(self._store.ls)}
        export = _Export(self._store, len(plan.token_bytes), self._pins)
        try:
            if (size_bytes := self._short_of.pop(plan.key, None)) is not None:
                await asyncio.to_thread(export.reserve, size_bytes)
            event = await self._through_engine(taken, plan, export)
            if event is None:
                return None
            meta = await asyncio.to_thread(export.publish, self._meta(event, plan), plan.token_bytes)
        except StoreFull:
            self._remember_size(plan.key, export.size_bytes)
            raise
        finally:
            export.discard()
        await self._forget_evicted(before)
        info = self._info(meta)
        self._journal.prefill_done(taken, info, event.export_ms)
        self._traces.prefilled(taken.job_id, info.snapshot, info.prefix_tokens, export_ms=event.export_ms)
        return info

    async def _through_engine(self, taken: TakenPrefill, plan: _Plan, export: _Export) -> PrefillExported | None:
        """None when the job was cancelled. Raises what failed it."""
        if taken.job_id in self.abandoned:
            return None
        ending = self._bridge.expect(taken.job_id, partial(self._progressed, taken, len(plan.tokens)))
        self._journal.prefill_started(taken, len(plan.tokens))
        self._engine.prefill(PrefillJob(taken.job_id, plan.tokens, export.reserve))
        event = await ending
        if isinstance(event, JobFailed):
            raise event.error
        return event if isinstance(event, PrefillExported) else None

    def _pins(self) -> frozenset[str]:
        """The snapshots that are waited for, as of now. For the engine's thread: it blocks."""
        asked = asyncio.run_coroutine_threadsafe(self._ask_pins(), self.loop)
        return asked.result()

    async def _ask_pins(self) -> frozenset[str]:
        """While Redis is away, what is known from before: at worst a snapshot too many is evicted, and rebuilt."""
        try:
            async with asyncio.timeout(self.settings.redis_timeout_s):
                self._known_pins = await self.ledger.jobs.pinned_snapshots()
        except (BrokerError, TimeoutError) as exc:
            logger.warning("pins are not known: %s", exc, extra={"action": "broker_lost"})
        return self._known_pins

    def _remember_size(self, key: str, size_bytes: int) -> None:
        """Next time room is made before anything is decoded."""
        while len(self._short_of) >= MAX_SIZES:
            del self._short_of[next(iter(self._short_of))]
        self._short_of[key] = size_bytes

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
        if evicted := sorted(before - after):
            await outage.patiently(lambda: self.ledger.jobs.forget_snapshots(evicted))

    async def _record(self, taken: TakenPrefill, info: SnapshotInfo, *, decoded: bool) -> None:
        register, ttl_ms = self.ledger.jobs.register, self.settings.result_ttl_ms
        held = await outage.patiently(lambda: register(self.info.id, taken, info, decoded=decoded, ttl_ms=ttl_ms))
        if held:
            self._traces.note(taken.job_id, "done")
            self._journal.snapshot_registered(taken, info, decoded=decoded)
        else:
            logger.info("prefill %s was no longer ours", taken.prefix_id, extra={"action": "lease_lost"})

    async def _no_room(self, taken: TakenPrefill, exc: StoreFull) -> None:
        if isinstance(exc, SnapshotTooLarge):
            await self._fail(taken, exc)
            return
        self._traces.note(taken.job_id, "no_room", exc.code)
        logger.warning("prefill waits for room: %s", exc, extra={"action": "store_full"})
        self.spawn(self._warn_of_no_room(taken, exc), name="warning")
        await self._hand_back(taken, exc.message)

    async def _warn_of_no_room(self, taken: TakenPrefill, exc: StoreFull) -> None:
        warning = RunWarning(message=f"The prefill waits for room. {exc.message}", hint=exc.hint)
        for run in await self.ledger.jobs.waiting_runs(taken.prefix_id):
            if run not in self._warned:
                self._warned.add(run)
                await self.ledger.jobs.emit({run: [warning]})

    async def _hand_back(self, taken: TakenPrefill, reason: str) -> None:
        hand_back = self.ledger.jobs.hand_back
        await outage.record(
            lambda: hand_back(self.info.id, [taken.job_id], reason=reason, delay_ms=WAIT_FOR_ROOM_MS)
        )

    async def _fail(self, taken: TakenPrefill, error: SwarmkvError) -> None:
        self._journal.prefill_failed(taken, error)
        self._traces.note(taken.job_id, "failed", error.code)
        await outage.record(lambda: self.ledger.jobs.fail_prefill(self.info.id, taken, error))

    # -- progress

    def _progressed(self, taken: TakenPrefill, total_tokens: int, event: Progress) -> None:
        assert isinstance(event, PrefillProgressed)
        self.spawn(self._tell_progress(taken, event.done_tokens, total_tokens), name="progress")

    async def _tell_progress(self, taken: TakenPrefill, done_tokens: int, total_tokens: int) -> None:
        event = PrefillProgress(done_tokens=done_tokens, total_tokens=total_tokens)
        runs = await self.ledger.jobs.waiting_runs(taken.prefix_id)
        await self.ledger.jobs.emit({run: [event] for run in runs})


class _Export:
    """The reserved file of one prefill; its methods block. The engine's thread calls `reserve`."""

    def __init__(self, store: SnapshotStore, token_bytes: int, pins: Callable[[], frozenset[str]]) -> None:
        self._store = store
        self._token_bytes = token_bytes
        self._pins = pins
        self._writer: SnapshotWriter | None = None
        self.size_bytes = 0  # what was asked for last

    def reserve(self, size_bytes: int) -> memoryview:
        """A buffer of that size in the mapped file. Raises StoreFull."""
        if self._writer is None or self.size_bytes != size_bytes:
            self.discard()
            self.size_bytes = size_bytes
            self._writer = self._store.reserve(size_bytes, self._token_bytes, pinned=self._pins())
        return self._writer.payload

    def publish(self, meta: SnapshotMeta, tokens: bytes) -> SnapshotMeta:
        assert self._writer is not None
        return self._writer.publish(meta, tokens)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
