"""What a worker says of a store that is too small, or that its peers do not share."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmkv.protocol.ledger import Ledger, LiveWorker
from swarmkv.protocol.messages import WorkerInfo
from swarmkv.snapshots import SnapshotStore, capacity
from swarmkv.workers.engine.jobs import EngineInfo
from swarmkv.workers.shared_store import strangers, warn_of_size, watch_peers

MIB = 1024 * 1024


def worker(number: int, store: str, *, model: str = "default") -> WorkerInfo:
    return WorkerInfo(
        id=f"branch-host-{number}", role="branch", model=model, pid=number, host="host", slots=1, store=store
    )


def live(*infos: WorkerInfo) -> list[LiveWorker]:
    return [LiveWorker(info, 0.0) for info in infos]


def engine(full_snapshot_bytes: int) -> EngineInfo:
    return EngineInfo("i", "f", {}, "llama", 4096, 4096, 1, full_snapshot_bytes)


def test_only_workers_of_the_same_model_that_name_another_store_are_strangers() -> None:
    apart = worker(2, "b")
    others = worker(3, "a"), worker(4, "b", model="legal"), worker(5, "")
    assert strangers("default", "a", live(apart, *others)) == [apart]
    assert strangers("default", "", live(apart, *others)) == []


async def test_a_peer_that_sees_another_store_is_named_once_with_what_to_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own, looks, enough = worker(1, "a"), 0, asyncio.Event()

    async def workers() -> list[LiveWorker]:
        nonlocal looks
        looks += 1
        if looks == 3:
            enough.set()
        return live(own, worker(2, "b"))

    ledger = cast(Ledger, SimpleNamespace(fleet=SimpleNamespace(workers=workers)))
    watching = asyncio.create_task(watch_peers(ledger, own, lambda: "a", 0.001))
    await asyncio.wait_for(enough.wait(), 10)
    watching.cancel()
    said = [record for record in caplog.records if cast(Any, record).action == "store_not_shared"]
    assert len(said) == 1
    assert said[0].levelno == logging.ERROR
    for part in ("branch-host-1", "branch-host-2", "SWARMKV_STORE_DIR", "one user"):
        assert part in said[0].message


def test_a_store_too_small_for_one_snapshot_of_the_context_is_told_both_sizes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SnapshotStore(tmp_path / "store", 2 * MIB)
    warn_of_size(store, engine(2 * MIB))
    assert caplog.records == []
    warn_of_size(store, engine(2 * MIB + 1024))
    assert [cast(Any, record).action for record in caplog.records] == ["store_too_small"]
    for part in ("4,096 tokens", "2.0 MiB", "SWARMKV_STORE_BUDGET_BYTES allows", "SWARMKV_N_CTX"):
        assert part in caplog.text


def test_a_file_system_smaller_than_budget_and_snapshot_is_what_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(tmp_path / "store", 2 * MIB)
    monkeypatch.setattr(capacity.Capacity, "of", lambda _: capacity.Capacity(MIB, MIB))
    assert "its file system has 1.0 MiB" in (store.context_problem(2 * MIB, 64) or "")


def test_a_volume_exactly_as_large_as_the_budget_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(tmp_path / "store", 2 * MIB)
    page = 4096  # the store's own token takes one
    monkeypatch.setattr(capacity.Capacity, "of", lambda _: capacity.Capacity(2 * MIB, 2 * MIB - page))
    assert store.problem() is None
    monkeypatch.setattr(capacity.Capacity, "of", lambda _: capacity.Capacity(MIB, MIB))
    assert "its file system has 1.0 MiB" in (store.problem() or "")
