"""Whether the workers of a model share one store that is large enough, and what to change when not.

Containers get this wrong in two ways: each has a directory of its own, or the shared one is a default's 64 MB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.ledger import Ledger, LiveWorker
from swarmkv.protocol.messages import WorkerInfo
from swarmkv.snapshots import SnapshotStore
from swarmkv.workers.engine.jobs import EngineInfo

logger = logging.getLogger(__name__)


def warn_of_size(store: SnapshotStore, engine: EngineInfo) -> None:
    """Log what keeps the store from its budget, and from even one snapshot of a document that fills the context."""
    problems = {
        "store_problem": store.problem(),
        "store_too_small": store.context_problem(engine.full_snapshot_bytes, engine.n_ctx),
    }
    for action, problem in problems.items():
        if problem:
            logger.warning("%s", problem, extra={"action": action})


async def watch_peers(ledger: Ledger, own: WorkerInfo, store_id: Callable[[], str], every_s: float) -> None:
    """Log each worker of the model that sees another store, once; endless. Peers come and go, so it looks again."""
    told: set[str] = set()
    while True:
        await asyncio.sleep(every_s)
        try:
            apart = strangers(own.model, store_id(), await ledger.fleet.workers())
        except BrokerError:
            continue  # who waits for Redis says so itself
        for peer in apart:
            if peer.id not in told:
                logger.error("%s", _not_shared(own, peer), extra={"action": "store_not_shared", "peer": peer.id})
        told = {peer.id for peer in apart}


def strangers(model: str, store_id: str, live: list[LiveWorker]) -> list[WorkerInfo]:
    """Live workers of the model whose store is not ours; one that names none has not found out, or is older."""
    peers = (worker.info for worker in live)
    return [peer for peer in peers if peer.model == model and peer.store and store_id not in ("", peer.store)]


def _not_shared(own: WorkerInfo, peer: WorkerInfo) -> str:
    return (
        f"{peer.role} worker {peer.id} on {peer.host} does not see the snapshots of {own.role} worker {own.id} on "
        f"{own.host}: branches will wait for snapshots that never come. Give all workers of model {own.model!r} "
        "one directory at SWARMKV_STORE_DIR, in containers one tmpfs volume (`store` in docker-compose.yml), and "
        "run them as one user."
    )
