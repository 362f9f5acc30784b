"""What is counted, against a real broker: once for each thing that happens, whatever else goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkv.monitor.overview import read_overview
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import SnapshotMissing
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch
from swarmkv.protocol.ledger.statistics import MINUTE_MS
from swarmkv.protocol.messages import (
    BranchResult,
    BranchTimings,
    ErrorInfo,
    StoredSnapshot,
    StoreInfo,
    TokenCounts,
    WorkerInfo,
)
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.statistics import Histogram, Totals
from tests.integration.test_ledger import (
    DAY_MS,
    LEASE_MS,
    branches_of,
    info_of,
    make_ready,
    run_of,
    submit,
    sweep_until,
    take,
    take_prefill,
)
from tests.waiting import eventually

EVERY_BROKER = True
PREFIX_TOKENS = 7  # of what `make_ready` registers
PREFILL_MS = 1500.5


@pytest.fixture
async def raw(settings: Settings) -> AsyncIterator[Any]:
    """A client of the test's database, to look and to spoil."""
    client = connect(settings.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


def measured(branch: TakenBranch, *, restore_ms: float = 0.0) -> Outcome:
    result = BranchResult(
        finish_reason="stop",
        tokens=TokenCounts(reused=PREFIX_TOKENS, prompt=3, generated=5),
        timings_ms=BranchTimings(queue=30, restore=restore_ms, first_token=200, decode=40, total=240),
    )
    return Outcome(branch, "done", result)


def failed(branch: TakenBranch) -> Outcome:
    error = ErrorInfo(code="branch_too_long", message="too long")
    return Outcome(branch, "failed", BranchResult(finish_reason="error", error=error))


async def counted(ledger: Ledger) -> Totals:
    return (await ledger.statistics.totals(["default"]))["default"]


def some(totals: Totals) -> dict[str, int]:
    """The counters that are not 0."""
    return {name: value for name, value in totals.counters.items() if value}


async def turn_minute(ledger: Ledger, raw: Any) -> None:
    """As if the last sweep had been in the minute before."""
    seconds, _ = await raw.time()
    await raw.set(keys.SWEPT, seconds * 1000 - MINUTE_MS)
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)


async def test_runs_that_succeed_are_counted_with_every_stage(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await submit(ledger, "bb", 1)
    await make_ready(ledger)
    first, *others = await take(ledger)
    await ledger.jobs.finish("w", [measured(first, restore_ms=2.0)])
    await ledger.jobs.finish("w", [measured(branch) for branch in others])
    totals = await counted(ledger)
    assert some(totals) == {
        "runs_submitted": 2,
        "runs_done": 2,
        "branches_done": 3,
        "prefills": 1,
        "snapshot_misses": 1,
        "snapshot_hits": 1,
        "tokens_reused": 3 * PREFIX_TOKENS,
        "tokens_prompt": 9,
        "tokens_generated": 15,
        "tokens_prefilled": PREFIX_TOKENS,
        "prefill_saved_ms": 2 * int(PREFILL_MS),
    }
    assert {stage: times.count for stage, times in totals.stages.items() if times.count != 3} == {
        "prefill": 1,
        "restore": 1,
    }
    assert totals.stages["ttft"].percentile_ms(1.0) == 250
    assert totals.stages["inter_token"].sum_ms == pytest.approx(30)
    assert totals.stages["prefill"].sum_ms == pytest.approx(PREFILL_MS)
    assert totals.stages["restore"].counts[1] == 1


async def test_what_is_saved_is_what_reports_say(ledger: Ledger) -> None:
    """Also when the branches of a run come one by one."""
    for run in ("aa", "bb"):
        await submit(ledger, run, 4)
    await make_ready(ledger)
    for branch in await take(ledger):
        await ledger.jobs.finish("w", [measured(branch)])
    reports = [await ledger.runs.report(run) for run in ("aa", "bb")]
    saved_ms = sum(report.prefill_saved_ms for report in reports)
    assert (await counted(ledger)).counters["prefill_saved_ms"] == pytest.approx(saved_ms, abs=2)


async def test_failures_cancellations_and_retries_are_told_apart(ledger: Ledger) -> None:
    await submit(ledger, "aa", 3)
    await make_ready(ledger)
    first, second, _ = await take(ledger)
    await ledger.jobs.finish("w", [measured(first), failed(second)])
    assert await ledger.runs.cancel("aa") == ["b2"]
    assert await ledger.recovery.retry("aa", ["failed", "cancelled"]) == ["b1", "b2"]
    await ledger.jobs.finish("w", [measured(branch) for branch in await take(ledger)])
    found = some(await counted(ledger))
    assert {name: found[name] for name in found if name.startswith(("runs_", "branches_", "retries"))} == {
        "runs_submitted": 1,
        "runs_cancelled": 1,
        "runs_done": 1,
        "branches_done": 3,
        "branches_failed": 1,
        "branches_cancelled": 1,
        "retries": 2,
    }


async def test_a_result_that_is_refused_is_not_counted(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger)
    for _ in range(2):
        await ledger.jobs.finish("w", [measured(branch)])
    await ledger.jobs.finish("another", [measured(branch)])
    totals = await counted(ledger)
    assert (totals.counters["branches_done"], totals.stages["ttft"].count) == (1, 1)


async def test_deaths_and_what_is_given_up_are_counted(ledger: Ledger, settings: Settings) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    for crash in range(1, 5):
        await take(ledger, f"w{crash}", lease_ms=1)
        await sweep_until(ledger, settings, crash + 1, "aa")
    found = some(await counted(ledger))
    assert (found["crashes"], found["dead"], found["branches_failed"], found["runs_failed"]) == (4, 1, 1, 1)
    assert found["retries"] == 3


async def test_a_prefill_that_fails_and_one_whose_worker_died_are_counted(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await take_prefill(ledger, "dies", lease_ms=1)

    async def is_queued_again() -> bool:
        await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
        return (await ledger.fleet.queue_depth("prefill", "default")) == 1

    await eventually(is_queued_again)
    (prefill,) = await take_prefill(ledger)
    await ledger.jobs.fail_prefill("p", prefill, SnapshotMissing("no"))
    found = some(await counted(ledger))
    assert found == {
        "runs_submitted": 1,
        "runs_failed": 1,
        "branches_failed": 2,
        "snapshot_misses": 1,
        "crashes": 1,
    }


async def test_snapshots_that_are_built_again_or_evicted_are_counted(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger)
    await ledger.jobs.rebuild("w", branch, SnapshotMissing("gone"), max_rebuilds=3)
    await make_ready(ledger)
    await ledger.jobs.forget_snapshots([info_of().snapshot, "5b" * 16])
    await submit(ledger, "bb", 1)
    found = some(await counted(ledger))
    assert (found["rebuilds"], found["prefills"], found["evictions"], found["retries"]) == (1, 2, 1, 1)
    assert (found["snapshot_misses"], found.get("snapshot_hits")) == (2, None)


async def test_what_others_put_in_the_place_of_counts_costs_no_result(ledger: Ledger, raw: Any) -> None:
    await raw.set(keys.key("model_stats", alias="default"), "not a hash")
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    assert await ledger.jobs.finish("w", [measured(branch) for branch in await take(ledger)]) == [True]
    assert (await ledger.runs.report("aa")).state == "done"
    await turn_minute(ledger, raw)


async def test_each_minute_is_kept_and_the_hour_survives_every_watcher(ledger: Ledger, raw: Any) -> None:
    """The first reader comes when all of it has happened."""
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    await ledger.jobs.finish("w", [measured(first)])
    began_ms = (await raw.time())[0] * 1000 - 10 * MINUTE_MS
    await raw.hset(keys.key("model_stats", alias="default"), "since_ms", began_ms)
    await turn_minute(ledger, raw)
    await ledger.jobs.finish("w", [measured(second)])
    [name] = await raw.keys(keys.key("model_stats_minute", minute="*", alias="default"))
    assert 0 < await raw.pttl(name) <= 65 * MINUTE_MS
    assert await raw.hget(name, "branches_done") == b"1"
    (stats,) = (await read_overview(ledger)).models
    assert stats.hour.counters["branches_done"] == 2
    assert [minute.totals.counters["branches_done"] for minute in stats.minutes][-1] == 1
    assert stats.latencies["ttft"].count == 2


async def test_what_happened_before_the_last_hour_is_left_out_of_it(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    await ledger.jobs.finish("w", [measured(first)])
    minute = (await raw.time())[0] // 60
    await raw.copy(
        keys.key("model_stats", alias="default"),
        keys.key("model_stats_minute", alias="default", minute=minute - 61),
    )
    await ledger.jobs.finish("w", [measured(second)])
    (stats,) = (await read_overview(ledger)).models
    assert (stats.totals.counters["branches_done"], stats.hour.counters["branches_done"]) == (2, 1)
    assert stats.hour.stages["ttft"].count == 1


async def test_a_minute_is_copied_once_and_no_copy_is_made_over_and_over(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 1)
    await turn_minute(ledger, raw)
    await ledger.runs.cancel("aa")
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
    first, *_ = sorted(await raw.keys(keys.key("model_stats_minute", minute="*", alias="default")))
    assert await raw.hget(first, "runs_cancelled") is None


async def test_queues_say_what_waits_runs_and_is_deferred(ledger: Ledger) -> None:
    await submit(ledger, "aa", 4)
    overview = await read_overview(ledger)
    prefill, branch = overview.queues
    assert (prefill.role, prefill.waiting, prefill.running, branch.waiting) == ("prefill", 1, 0, 0)
    assert prefill.oldest_age_s is not None
    assert (overview.runs_open, overview.branches_open) == (1, 4)
    await make_ready(ledger)
    taken = await take(ledger, limit=2)
    await ledger.jobs.hand_back("w", [taken[0].job_id], reason="no cells were free", delay_ms=60_000)
    _, branch = (await read_overview(ledger)).queues
    assert (branch.waiting, branch.running, branch.deferred) == (2, 1, 1)


async def test_a_model_that_no_worker_ever_announced_has_its_queue_too(ledger: Ledger) -> None:
    spec = run_of("aa")
    other = spec.model_copy(update={"prefix": spec.prefix.model_copy(update={"model": "unheard-of"})})
    await ledger.runs.submit(
        other, branches_of(1), b"The retry limit is four.", deadline_ms=DAY_MS, ttl_ms=DAY_MS, any_model=True
    )
    overview = await read_overview(ledger)
    assert {(queue.role, queue.model): queue.waiting for queue in overview.queues} == {
        ("prefill", "unheard-of"): 1,
        ("branch", "unheard-of"): 0,
    }


async def test_redis_says_what_it_is(ledger: Ledger) -> None:
    broker = (await read_overview(ledger)).broker
    assert broker is not None
    assert broker.name in ("redis", "valkey")
    assert (broker.policy, broker.max_bytes) == ("noeviction", 0)
    assert broker.used_bytes > 0


async def test_a_report_of_a_store_is_completed_by_what_redis_knows(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    await ledger.jobs.finish("w", [measured(first)])
    listed = tuple(
        StoredSnapshot(key=key, tokens=7, size_bytes=99, created_ms=1, used_ms=2)
        for key in (info_of().snapshot, "5b" * 16)
    )
    info = StoreInfo(
        id="s", host="h", path="/store", used_bytes=198, limit_bytes=400, num_snapshots=2, snapshots=listed
    )
    await ledger.stores.report(info, ttl_ms=30_000)
    (store,) = (await read_overview(ledger)).stores
    known, unknown = store.info.snapshots
    assert (known.documents, known.models, known.hits, known.is_needed) == (
        (run_of("aa").prefix.document,),
        ("default",),
        1,
        True,
    )
    assert known.used_ms > 1_000_000
    assert (unknown.documents, unknown.hits, unknown.is_needed, unknown.used_ms) == ((), 0, False, 2)
    assert store.used_share == pytest.approx(198 / 400)
    await ledger.jobs.finish("w", [measured(second)])
    await ledger.stores.report(info, ttl_ms=30_000)
    known, _ = (await ledger.stores.all())[0].snapshots
    assert (known.hits, known.is_needed) == (2, False)
    assert 0 < await raw.pttl(keys.key("store", store="s")) <= 30_000


async def test_a_snapshot_that_another_has_followed_is_nobodys(ledger: Ledger) -> None:
    """Its prefix was built again, with another result; the file is still there."""
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger)
    await ledger.jobs.rebuild("w", branch, SnapshotMissing("gone"), max_rebuilds=3)
    (prefill,) = await take_prefill(ledger)
    await ledger.jobs.register("p", prefill, info_of("5b" * 16), decoded=True, ttl_ms=DAY_MS)
    listed = tuple(
        StoredSnapshot(key=key, tokens=7, size_bytes=99, created_ms=1, used_ms=2) for key in ("5a" * 16, "5b" * 16)
    )
    info = StoreInfo(id="s", host="h", path="/", used_bytes=1, limit_bytes=4, num_snapshots=2, snapshots=listed)
    await ledger.stores.report(info, ttl_ms=30_000)
    old, new = (await ledger.stores.all())[0].snapshots
    assert (old.models, old.is_needed) == ((), False)
    assert (new.models, new.is_needed) == (("default",), True)


async def test_an_empty_store_and_a_forged_report_are_read(ledger: Ledger, raw: Any) -> None:
    info = StoreInfo(id="s", host="h", path="/store", used_bytes=0, limit_bytes=400, num_snapshots=0)
    await ledger.stores.report(info, ttl_ms=30_000)
    await raw.zadd(keys.STORES, {"forged": 1e15, "gone": 1e15})
    await raw.hset(keys.key("store", store="forged"), mapping={"about": b"\xff", "snapshots": b"1"})
    (store,) = await ledger.stores.all()
    assert store.snapshots == ()


async def test_a_heartbeat_carries_everything_that_workers_know(ledger: Ledger) -> None:
    info = WorkerInfo(
        id="w",
        role="branch",
        model="default",
        pid=1,
        host="h",
        slots=8,
        state="paused",
        cells_used=120,
        residents=("5a" * 16, "5b" * 16),
        tokens_per_s=33.5,
        rss_bytes=1 << 33,
        device="CPU",
        version="0.1.0",
        store="s",
    )
    await ledger.fleet.beat(info, [], lease_ms=LEASE_MS)
    (live,) = await ledger.fleet.workers()
    assert live.info == info


async def test_watching_changes_nothing(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    await ledger.jobs.finish("w", [measured(branch) for branch in await take(ledger)])
    before = {name: await raw.dump(name) for name in await raw.keys("*")}
    first, second = await read_overview(ledger), await read_overview(ledger)
    assert first.models[0].totals == second.models[0].totals
    assert {name: await raw.dump(name) for name in await raw.keys("*")} == before


async def test_an_empty_database_is_an_empty_overview(ledger: Ledger) -> None:
    overview = await read_overview(ledger)
    assert (overview.queues, overview.workers, overview.models, overview.stores) == ((), (), (), ())
    assert overview.all_models.hour.stages["ttft"] == Histogram()
