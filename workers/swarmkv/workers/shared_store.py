"""Whether the store is large enough, and what to change when not: containers have 64 MB of /dev/shm by default."""

from __future__ import annotations

import logging

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
