"""Real workers, and what watchers learn of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from swarmkv.monitor.overview import Overview, read_overview
from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, LiveWorker
from swarmkv.protocol.settings import Settings
from tests.processes import Fleet
from tests.waiting import eventually

DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)


async def overview_when(ledger: Ledger, is_so: Callable[[Overview], bool]) -> Overview:
    """The first overview of which that is true."""
    seen: list[Overview] = []

    async def is_seen() -> bool:
        seen.append(await read_overview(ledger))
        return is_so(seen[-1])

    await eventually(is_seen)
    return seen[-1]


def hits(overview: Overview) -> int:
    return sum(snapshot.hits for store in overview.stores for snapshot in store.info.snapshots)


def branch_worker(overview: Overview) -> LiveWorker:
    (live,) = overview.workers_of("branch", "default")
    return live


async def test_runs_through_two_processes_are_counted_and_their_store_is_listed(
    fleet: Fleet, producer: Producer, ledger: Ledger, settings: Settings
) -> None:
    for role in ("prefill", "branch"):
        fleet.start(role, "null", null_engine=True)
    await fleet.ready(producer, 2)
    for _ in range(2):
        report = await (await producer.submit(DOCUMENT, ["One?", "Two?", "Three?"], sampling=SHORT)).results(20)
        assert report.state == "done"
    overview = await overview_when(ledger, lambda seen: hits(seen) == 6)
    (stats,) = overview.models
    counters = stats.hour.counters
    assert (counters["runs_submitted"], counters["prefills"]) == (2, 1)
    assert (counters["snapshot_misses"], counters["snapshot_hits"]) == (1, 1)
    assert counters["branches_done"] == stats.latencies["ttft"].count == stats.latencies["e2e"].count == 6
    assert counters["tokens_reused"] == counters["branches_done"] * report.document_tokens
    assert stats.saved.share == pytest.approx(5 / 6)

    (store,) = overview.stores
    (snapshot,) = store.info.snapshots
    assert (snapshot.documents, snapshot.models) == ((digest_bytes(DOCUMENT.encode()),), ("default",))
    assert (snapshot.tokens, snapshot.problem) == (report.document_tokens, "")
    assert store.info.limit_bytes == settings.store_budget_bytes
    assert {live.info.store for live in overview.workers} == {store.info.id}


async def test_heartbeats_of_a_real_engine_tell_its_cells_residents_and_memory(
    fleet: Fleet, producer: Producer, ledger: Ledger, tiny_llama_path: Path
) -> None:
    fleet.start("prefill", tiny_llama_path)
    fleet.start("branch", tiny_llama_path)
    await fleet.ready(producer, 2)
    endless = Sampling(temperature=0, max_tokens=2_500, ignore_eos=True)
    run = await producer.submit(DOCUMENT, ["Go on."], sampling=endless)
    busy = await overview_when(ledger, lambda seen: branch_worker(seen).info.tokens_per_s > 0)
    live = branch_worker(busy)
    (prefill,) = busy.workers_of("prefill", "default")
    document_tokens = (await run.report()).document_tokens
    assert live.info.cells_used >= document_tokens + 2_500
    assert live.info.residents == ((await run.report()).snapshot,)
    assert live.info.rss_bytes > 10_000_000
    assert (live.info.device, live.info.state, prefill.info.residents) == ("CPU", "running", ())
    assert live.info.version
    await run.cancel()
    await overview_when(ledger, lambda seen: branch_worker(seen).info.cells_used == document_tokens)
