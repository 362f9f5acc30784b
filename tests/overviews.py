"""Overviews made by hand, for what is drawn from them."""

from __future__ import annotations

from typing import Any

from swarmkv.monitor.overview import ModelStats, Overview, StoreState
from swarmkv.protocol.ledger import BrokerState, LiveWorker, QueueState
from swarmkv.protocol.messages import StoredSnapshot, StoreInfo, WorkerInfo
from swarmkv.protocol.statistics import NOTHING, Totals

NOW_MS = 1_800_000_000_000
BROKER = BrokerState("valkey", "9.0.0", 1_000, 0, "noeviction", True, 60, 3)


def worker(role: Any = "branch", model: str = "default", *, age_s: float = 0.5, **fields: Any) -> LiveWorker:
    info = {"id": f"{role}-1", "pid": 7, "host": "h", "slots": 8, "store": "s", "identity": "i", **fields}
    return LiveWorker(WorkerInfo(role=role, model=model, **info), age_s)


def queue(role: Any = "branch", model: str = "default", **fields: Any) -> QueueState:
    counts: dict[str, Any] = {"waiting": 0, "running": 0, "deferred": 0, "oldest_age_s": None}
    return QueueState(role, model, **{**counts, **fields})


def totals(**counters: int) -> Totals:
    return Totals({**NOTHING.counters, **counters}, NOTHING.stages)  # type: ignore[dict-item]


def model(name: str = "default", **counters: int) -> ModelStats:
    """A model whose counters all grew within the hour."""
    return ModelStats(name, totals(**counters), totals(**counters), ())


def store(*sizes: int, limit_bytes: int = 100, is_needed: bool = False) -> StoreState:
    snapshots = tuple(
        StoredSnapshot(
            key=f"{number:032x}", tokens=9, size_bytes=size, created_ms=1, used_ms=2, is_needed=is_needed
        )
        for number, size in enumerate(sizes)
    )
    info = StoreInfo(
        id="s",
        host="h",
        path="/store",
        used_bytes=sum(sizes),
        limit_bytes=limit_bytes,
        num_snapshots=len(sizes),
        snapshots=snapshots,
    )
    return StoreState(info)


def overview(**changes: Any) -> Overview:
    """A quiet installation: a worker of each role, nothing to do."""
    quiet: dict[str, Any] = {
        "now_ms": NOW_MS,
        "queues": (queue("prefill"), queue()),
        "workers": (worker("prefill"), worker()),
        "models": (model(),),
        "stores": (store(),),
        "broker": BROKER,
        "runs_open": 0,
        "branches_open": 0,
        "dead": 0,
    }
    return Overview(**{**quiet, **changes})
