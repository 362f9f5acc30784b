"""What a worker says of a store that is too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from swarmkv.snapshots import SnapshotStore, capacity
from swarmkv.workers.engine.jobs import EngineInfo
from swarmkv.workers.shared_store import warn_of_size

MIB = 1024 * 1024


def engine(full_snapshot_bytes: int) -> EngineInfo:
    return EngineInfo("i", "f", {}, "llama", 4096, 4096, 1, full_snapshot_bytes)


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
