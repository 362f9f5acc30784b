"""Prometheus' own programs, and an overview that has something of everything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from swarmkv.monitor.overview import ModelStats, Overview, StoreState
from swarmkv.protocol.ledger import BrokerState, LiveWorker, QueueState
from swarmkv.protocol.messages import StoredSnapshot, StoreInfo, WorkerInfo
from swarmkv.protocol.statistics import BOUNDS_MS, COUNTERS, STAGES, Totals, bucket_field

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RUN = "0123456789ab"
_METRIC_NAME = re.compile(r"\b(?:swarmkv|process)_[a-z_]+\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test where neither is installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here (Debian: apt install prometheus)")
    return path


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """What promtool says; fails with it when it is not content."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def families(text: bytes) -> dict[str, Metric]:
    """The metrics of an answer by the name that stands in it, parsed."""
    found = text_string_to_metric_families(text.decode())
    return {family.name + ("_total" if family.type == "counter" else ""): family for family in found}


def names_in(expression: str) -> set[str]:
    """Our metrics that a PromQL expression asks for, without the endings of a histogram's series."""
    return {_SUFFIX.sub("", name) for name in _METRIC_NAME.findall(expression)}


def totals(first: int = 3) -> Totals:
    """Counters that count up from `first`; each stage has one case in each bucket, and two beyond."""
    row = {name.encode(): str(first + number).encode() for number, name in enumerate(COUNTERS)}
    for stage in STAGES:
        row |= {bucket_field(stage, bound).encode(): b"1" for bound in BOUNDS_MS}
        row[f"{stage}:count".encode()] = str(len(BOUNDS_MS) + 2).encode()
        row[f"{stage}:sum_us".encode()] = b"2500000"
    return Totals.read(row)


def full_overview(model: str = "default") -> Overview:
    """Two workers, a store and a broker; a branch queue in which two wait, one runs and one is deferred."""
    queues = (
        QueueState("prefill", model, waiting=0, running=0, deferred=0, oldest_age_s=None),
        QueueState("branch", model, waiting=2, running=1, deferred=1, oldest_age_s=4.5),
    )
    branch = WorkerInfo(
        id="branch-host-1-ab", role="branch", model=model, pid=1, host="host", slots=8, slots_used=3, n_ctx=4096,
        cells_used=1024, residents=("a", "b"), rss_bytes=10**9, started_ms=1_700_000_000_000, state="paused",
    )  # fmt: skip
    prefill = branch.model_copy(update={"id": "prefill-host-1-cd", "role": "prefill", "state": "running"})
    snapshot = StoredSnapshot(key="k", tokens=1, size_bytes=40, created_ms=1, used_ms=1, is_pinned=True)
    store = StoreInfo(
        id="s1", host="host", path="/dev/shm/x", used_bytes=70, limit_bytes=100, num_snapshots=2,
        snapshots=(snapshot, snapshot.model_copy(update={"key": "l", "is_pinned": False})),
    )  # fmt: skip
    counted = totals()
    return Overview(
        now_ms=1_700_000_100_000,
        queues=queues,
        workers=(LiveWorker(branch, 0.25), LiveWorker(prefill, 0.5)),
        models=(ModelStats(model, counted, counted, ()),),
        stores=(StoreState(store),),
        broker=BrokerState("valkey", "8", 100, 1000, "noeviction", True, 10, 3),
        runs_open=1,
        branches_open=4,
        dead=2,
    )
