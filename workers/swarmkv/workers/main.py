"""A worker process: one engine, one or both roles, from start to a stop in stages."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from arq.connections import ArqRedis

from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.broker import broker_errors, connect, shown
from swarmkv.protocol.errors import BrokerError, EngineError, ModelError
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.messages import WorkerInfo
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.tracing import Tracing, open_tracing
from swarmkv.snapshots import SnapshotStore
from swarmkv.workers.branch import BranchWorker
from swarmkv.workers.bridge import EngineBridge
from swarmkv.workers.engine.jobs import Engine, EngineDied
from swarmkv.workers.inventory import Inventory
from swarmkv.workers.leased import new_worker_id
from swarmkv.workers.models import resolve_model
from swarmkv.workers.opening import WorkerRole, engine_config, open_engine
from swarmkv.workers.prefill import PrefillWorker
from swarmkv.workers.shared_store import warn_of_size, watch_peers
from swarmkv.workers.status import Status
from swarmkv.workers.tasks import end_all
from swarmkv.workers.tuning import with_tuning
from swarmkv.workers.vitals import Vitals

logger = logging.getLogger(__name__)

Worker = PrefillWorker | BranchWorker


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of one process have in common; the process closes it."""

    redis: ArqRedis
    ledger: Ledger
    settings: Settings
    engine: Engine
    bridge: EngineBridge
    store: SnapshotStore
    inventory: Inventory
    tracing: Tracing


def run_worker(role: WorkerRole, alias: str, model: str, settings: Settings) -> int:
    """Serve one model until SIGTERM or SIGINT; blocking. Returns the process's exit code.

    Raises ModelError and ConfigError before any job is taken, EngineError when the engine died.
    """
    return asyncio.run(_watched(role, alias, model, settings))


async def _watched(role: WorkerRole, alias: str, model: str, settings: Settings) -> int:
    status = Status(settings)
    async with status.answering():
        return await _serve(role, alias, model, settings, status)


async def _serve(role: WorkerRole, alias: str, model: str, settings: Settings, status: Status) -> int:
    path = Path("null") if settings.null_engine else await asyncio.to_thread(resolve_model, model)
    store = SnapshotStore(settings.store_dir, settings.store_budget_bytes)
    redis = connect(settings.redis_url, timeout_s=settings.redis_timeout_s)
    ledger = Ledger(redis, max_events=settings.max_events)
    bridge = EngineBridge(asyncio.get_running_loop())
    engine: Engine | None = None
    tracing = open_tracing(settings)
    stopping = _stop_signals()
    try:
        await _await_broker(redis, ledger, alias, settings, stopping)
        if stopping.is_set():
            return 0
        settings = await asyncio.to_thread(with_tuning, path, settings)
        config = engine_config(role, path, settings)
        engine = await asyncio.to_thread(open_engine, config, settings, bridge.emit)
        info = engine.info
        warn_of_size(store, info)
        await ledger.fleet.announce(alias, identity=info.identity, fingerprint=info.fingerprint)
        inventory = Inventory(ledger, store, every_s=settings.heartbeat_s)
        await inventory.identify()
        shared = Shared(redis, ledger, settings, engine, bridge, store, inventory, tracing)
        roles: tuple[Role, ...] = ("prefill", "branch") if role == "all" else (role,)
        workers = [_worker(item, alias, shared) for item in roles]
        workers[0].also["inventory"] = inventory.run
        workers[0].also["peers"] = partial(
            watch_peers, ledger, workers[0].info, inventory.store_id, settings.lease_s
        )
        status.show(workers, engine)
        watching = asyncio.create_task(_watch_model(engine, bridge, settings.heartbeat_s), name="model")
        try:
            await _run_workers(workers, bridge, stopping)
        finally:
            await end_all([watching])
    finally:
        if engine is not None:
            await asyncio.to_thread(engine.close)
        await asyncio.to_thread(tracing.close)
        await redis.aclose(close_connection_pool=True)
    return 0


def _stop_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT, from before the first wait: as process 1 of a container nothing else ends us."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    return stopping


def _worker(role: Role, alias: str, shared: Shared) -> Worker:
    settings, engine = shared.settings, shared.engine
    kind: Literal["prefill", "branch"] = role
    info = WorkerInfo(
        id=new_worker_id(role),
        role=kind,
        model=alias,
        pid=os.getpid(),
        host=socket.gethostname(),
        slots=settings.slots if role == "branch" else 1,
        n_ctx=engine.info.n_ctx,
        identity=engine.info.identity,
        started_ms=time.time_ns() // 1_000_000,
        version=importlib.metadata.version("swarmkv"),
    )
    make = BranchWorker if role == "branch" else PrefillWorker
    vitals = Vitals(role, engine, shared.inventory.store_id)
    return make(
        shared.redis, shared.ledger, settings, info, engine, shared.bridge, shared.store, vitals, shared.tracing
    )


async def _run_workers(workers: list[Worker], bridge: EngineBridge, stopping: asyncio.Event) -> None:
    """Serve until told to stop; raise EngineError if the engine dies first."""
    for worker in workers:
        worker.on_drain = partial(_drain, workers, stopping)
    serving = [asyncio.create_task(worker.serve(), name=worker.info.id) for worker in workers]
    for worker in workers:
        logger.info(
            "%s worker %s serves model %r",
            worker.info.role,
            worker.info.id,
            worker.info.model,
            extra={"action": "worker_ready", "worker": worker.info.id},
        )
    told = asyncio.create_task(stopping.wait(), name="stopping")
    await _first_of({*serving, told, bridge.died})
    told.cancel()
    if not bridge.died.done():
        for worker in workers:
            worker.stop()
        await _first_of({asyncio.create_task(asyncio.wait(serving), name="ending"), bridge.died})
    if bridge.died.done():
        # No job is handed back: whether one of them killed the engine is for the sweep to find out.
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        raise _death(bridge.died.result())
    await asyncio.gather(*serving)


def _drain(workers: list[Worker], stopping: asyncio.Event, grace_s: float | None) -> None:
    """Told to one worker, it ends the process, and so the other role that runs there."""
    for worker in workers:
        worker.grace_s = worker.grace_s if grace_s is None else grace_s
    stopping.set()


def _death(cause: Exception) -> EngineError:
    if isinstance(cause, EngineError):
        return cause
    error = EngineError(f"The engine ended unexpectedly: {cause!r}.")
    error.__cause__ = cause
    return error


async def _watch_model(engine: Engine, bridge: EngineBridge, every_s: float) -> None:
    """An idle worker, too, must not go on under the identity of a model that is gone."""
    while True:
        await asyncio.sleep(every_s)
        try:
            engine.check_model()
        except ModelError as exc:
            bridge.emit([EngineDied(exc)])
            return


async def _first_of(futures: set[asyncio.Future[Any]]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _await_broker(
    redis: ArqRedis, ledger: Ledger, alias: str, settings: Settings, stopping: asyncio.Event
) -> None:
    """Make the alias known; waits as long as Redis is not there yet, since it may start after us."""
    url, backoff = shown(settings.redis_url), Backoff()
    while not stopping.is_set():
        try:
            await ledger.fleet.announce(alias)
            await _check_policy(redis)
            return
        except BrokerError as exc:
            if not exc.is_passing:
                raise
            if backoff.num_failures == 0:
                logger.warning("waiting for Redis at %s: %s", url, exc, extra={"action": "broker_lost"})
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), backoff.next_s())


async def _check_policy(redis: Any) -> None:
    try:
        with broker_errors():
            found = await redis.info("memory")
    except BrokerError:
        return  # nothing can be said then
    policy = str(found.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        logger.warning(
            "Redis drops keys when memory is short (maxmemory-policy %s): queued work may vanish; "
            "set it to noeviction",
            policy,
            extra={"action": "broker_policy"},
        )
