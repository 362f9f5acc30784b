"""The ledger's scripts against a real broker: single flight, fencing, leases, repair."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.codec import pack
from swarmkv.protocol.errors import RunNotFound, SnapshotMissing, SwarmkvError, UnknownModel
from swarmkv.protocol.events import BranchDone, BranchRestarted, RunDone
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch, TakenPrefill
from swarmkv.protocol.messages import (
    BranchResult,
    BranchSpec,
    PrefixSpec,
    RunReport,
    RunSpec,
    Sampling,
    SnapshotInfo,
    WorkerInfo,
)
from swarmkv.protocol.settings import Settings
from tests.waiting import eventually

EVERY_BROKER = True
DOCUMENT = b"The retry limit is four."
LEASE_MS = 60_000
DAY_MS = 86_400_000


def run_of(run_id: str, document: bytes = DOCUMENT) -> RunSpec:
    prefix = PrefixSpec(model="default", document=digest_bytes(document))
    return RunSpec(run_id=run_id, name=run_id, prefix=prefix, document_bytes=len(document))


def branches_of(count: int) -> list[BranchSpec]:
    return [BranchSpec(name=f"b{i}", prompt=f"question {i}", sampling=Sampling(seed=i)) for i in range(count)]


async def submit(
    ledger: Ledger, run_id: str, count: int = 3, document: bytes = DOCUMENT, deadline_ms: int = DAY_MS
) -> RunSpec:
    spec = run_of(run_id, document)
    await ledger.runs.submit(
        spec, branches_of(count), document, deadline_ms=deadline_ms, ttl_ms=DAY_MS, any_model=True
    )
    return spec


async def take_prefill(ledger: Ledger, worker: str = "p", lease_ms: int = LEASE_MS) -> list[TakenPrefill]:
    return await ledger.jobs.take_prefills("default", worker, limit=9, lease_ms=lease_ms)


async def take(ledger: Ledger, worker: str = "w", limit: int = 99, lease_ms: int = LEASE_MS) -> list[TakenBranch]:
    return await ledger.jobs.take_branches("default", worker, limit=limit, lease_ms=lease_ms)


def info_of(snapshot: str = "5a" * 16) -> SnapshotInfo:
    return SnapshotInfo(
        snapshot=snapshot, prefix_tokens=7, size_bytes=99, prefill_ms=1500.5, identity="id", host="h"
    )


async def make_ready(ledger: Ledger, worker: str = "p") -> None:
    (prefill,) = await take_prefill(ledger, worker)
    assert await ledger.jobs.register(worker, prefill, info_of(), decoded=True, ttl_ms=DAY_MS)


def done(branch: TakenBranch, text: str = "four") -> Outcome:
    return Outcome(branch, "done", BranchResult(text=text, finish_reason="stop"))


async def beat(ledger: Ledger, worker: str, jobs: list[str], lease_ms: int = LEASE_MS) -> list[str]:
    info = WorkerInfo(id=worker, role="branch", model="default", pid=1, host="h", slots=8)
    return await ledger.fleet.beat(info, jobs, lease_ms=lease_ms)


async def sweep_until(ledger: Ledger, settings: Settings, attempts: int, run_id: str) -> RunReport:
    """Sweep until the first branch has had so many attempts."""

    async def is_there() -> bool:
        await ledger.fleet.sweep(max_solo_crashes=settings.max_solo_crashes, lease_ms=LEASE_MS)
        report = await ledger.runs.report(run_id)
        return report.branches[0].attempts >= attempts or report.is_finished

    await eventually(is_there)
    return await ledger.runs.report(run_id)


async def test_two_runs_over_one_document_queue_exactly_one_prefill(ledger: Ledger) -> None:
    await submit(ledger, "aa")
    await submit(ledger, "bb")
    assert len(await take_prefill(ledger)) == 1
    await submit(ledger, "cc")
    assert await take_prefill(ledger) == []


async def test_registering_releases_every_waiter_in_order_and_counts_one_prefill(ledger: Ledger) -> None:
    await submit(ledger, "aa", 12)
    await submit(ledger, "bb", 2)
    assert await take(ledger) == []
    await make_ready(ledger)
    taken = await take(ledger)
    assert [b.index for b in taken if b.run_id == "aa"] == list(range(12))
    assert [b.index for b in taken if b.run_id == "bb"] == [0, 1]
    assert {b.snapshot for b in taken} == {"5a" * 16}
    first, second = await ledger.runs.report("aa"), await ledger.runs.report("bb")
    assert (first.prefills_run, second.prefills_run) == (1, 0)
    assert first.prefill_ms == pytest.approx(1500.5)
    assert (first.document_tokens, first.snapshot) == (7, "5a" * 16)


async def test_a_run_that_finds_a_ready_snapshot_queues_its_branches_at_once(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    await submit(ledger, "bb", 2)
    assert await take_prefill(ledger) == []
    assert sorted(b.run_id for b in await take(ledger)) == ["aa", "bb", "bb"]
    assert (await ledger.runs.report("bb")).prefills_run == 0


async def test_another_model_behind_the_alias_makes_the_old_snapshot_unready(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    await ledger.fleet.announce("default", identity="another", fingerprint="f")
    await submit(ledger, "bb", 1)
    assert len(await take_prefill(ledger)) == 1


async def test_a_result_is_written_once_and_ends_the_run(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    assert await ledger.jobs.finish("w", [done(first, "one")]) == [True]
    assert await ledger.jobs.finish("w", [done(first, "again"), done(second, "two")]) == [False, True]
    report = await ledger.runs.report("aa")
    assert report.state == "done"
    assert [b.text for b in report.branches] == ["one", "two"]
    assert await ledger.runs.wait_done("aa", 10)
    _, events = await ledger.runs.read_events("aa", "0", 10)
    assert isinstance(events[-1], RunDone)
    assert sum(isinstance(event, BranchDone) for event in events) == 2


async def test_one_failed_branch_never_hides_the_others(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    bad = Outcome(first, "failed", BranchResult(finish_reason="error"))
    await ledger.jobs.finish("w", [bad, done(second)])
    report = await ledger.runs.report("aa")
    assert report.state == "completed_with_errors"
    assert [b.state for b in report.branches] == ["failed", "done"]


async def test_another_worker_cannot_finish_a_leased_branch(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger, "w1")
    assert await ledger.jobs.finish("w2", [done(branch)]) == [False]
    assert (await ledger.runs.report("aa")).branches[0].state == "running"


async def test_an_expired_lease_gives_the_branch_a_new_attempt_and_fences_the_old(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (old,) = await take(ledger, "w1", lease_ms=1)
    await sweep_until(ledger, settings, 2, "aa")
    (new,) = await take(ledger, "w2")
    assert new.attempt == old.attempt + 1
    assert await ledger.jobs.finish("w1", [done(old, "late")]) == [False]
    assert await ledger.jobs.finish("w2", [done(new, "new")]) == [True]
    assert (await ledger.runs.report("aa")).branches[0].text == "new"
    _, events = await ledger.runs.read_events("aa", "0", 10)
    assert any(isinstance(event, BranchRestarted) and event.attempt == 2 for event in events)


async def test_a_heartbeat_keeps_leases_and_names_those_that_are_lost(ledger: Ledger, settings: Settings) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger, "w1", lease_ms=1)
    assert await beat(ledger, "w1", [first.job_id]) == []
    await sweep_until(ledger, settings, 1, "aa")

    async def second_is_queued() -> bool:
        await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
        return (await ledger.runs.report("aa")).branches[1].attempts == 2

    await eventually(second_is_queued)
    assert await beat(ledger, "w1", [first.job_id, second.job_id]) == [second.job_id]
    assert (await ledger.runs.report("aa")).branches[0].state == "running"


async def test_a_branch_that_kills_its_worker_runs_alone_and_is_parked_at_last(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    solos = []
    for crash in range(1, 9):
        taken = await take(ledger, f"w{crash}", lease_ms=1)
        if not taken:
            break
        solos.append(taken[0].is_solo)
        await sweep_until(ledger, settings, crash + 1, "aa")
    assert solos == [False, False, True, True]
    branch = (await ledger.runs.report("aa")).branches[0]
    assert branch.state == "failed"
    assert branch.error is not None
    assert branch.error.code == "crashes_worker"


async def test_lost_leases_of_living_workers_never_count_towards_parking(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    for attempt in range(1, 8):
        await beat(ledger, "alive", [])
        (branch,) = await take(ledger, "alive", lease_ms=1)
        assert not branch.is_solo
        await sweep_until(ledger, settings, attempt + 1, "aa")
    assert (await ledger.runs.report("aa")).branches[0].state == "queued"


async def test_a_dead_prefill_is_run_again_and_fails_its_runs_after_too_many_deaths(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 2)
    for _ in range(settings.max_solo_crashes + 1):
        (prefill,) = await take_prefill(ledger, lease_ms=1)

        async def swept() -> bool:
            counts = await ledger.fleet.sweep(max_solo_crashes=settings.max_solo_crashes, lease_ms=LEASE_MS)
            return counts.leases == 1

        await eventually(swept)
        assert not await ledger.jobs.register("p", prefill, info_of(), decoded=True, ttl_ms=DAY_MS)
    report = await ledger.runs.report("aa")
    assert report.state == "failed"
    assert report.error is not None
    assert report.error.code == "crashes_worker"
    await submit(ledger, "bb", 1)
    assert len(await take_prefill(ledger)) == 1


async def test_a_failed_prefill_fails_its_runs_with_its_reason_and_may_be_tried_again(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    (prefill,) = await take_prefill(ledger)
    assert await ledger.jobs.fail_prefill("p", prefill, SwarmkvError("too long", hint="shorten it"))
    report = await ledger.runs.report("aa")
    assert (report.state, [b.state for b in report.branches]) == ("failed", ["failed", "failed"])
    assert report.branches[0].error is not None
    assert report.branches[0].error.hint == "shorten it"
    await submit(ledger, "bb", 1)
    assert len(await take_prefill(ledger)) == 1


async def test_a_lost_snapshot_is_rebuilt_a_bounded_number_of_times(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    for _ in range(3):
        await make_ready(ledger)
        (branch,) = await take(ledger)
        answer = await ledger.jobs.rebuild("w", branch, SnapshotMissing("gone"), max_rebuilds=3)
        assert answer == "waiting"
    await make_ready(ledger)
    (branch,) = await take(ledger)
    assert await ledger.jobs.rebuild("w", branch, SnapshotMissing("gone"), max_rebuilds=3) == "failed"
    report = await ledger.runs.report("aa")
    assert report.branches[0].error is not None
    assert report.branches[0].error.code == "snapshot_missing"
    assert report.prefills_run == 4


async def test_work_that_arq_forgot_is_queued_again(ledger: Ledger, settings: Settings) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    client = connect(settings.redis_url, timeout_s=5)
    await client.delete(keys.key("queue", role="branch", alias="default"))
    assert await take(ledger) == []
    counts = await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS, stale_ms=0)
    assert counts.requeued == 1
    assert len(await take(ledger)) == 1
    await client.aclose(close_connection_pool=True)


async def test_a_run_past_its_deadline_fails_and_leaves_no_queued_work(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2, deadline_ms=1)

    async def swept() -> bool:
        return (await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)).deadlines == 1

    await eventually(swept)
    report = await ledger.runs.report("aa")
    assert report.state == "failed"
    assert report.error is not None
    assert report.error.code == "deadline_exceeded"
    assert await take_prefill(ledger) == []


async def test_cancelling_ends_open_branches_keeps_results_and_drops_the_idle_prefill(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1, document=b"other")
    assert await ledger.runs.cancel("aa") == ["b0"]
    assert await take_prefill(ledger) == []
    await submit(ledger, "bb", 3)
    await make_ready(ledger)
    first, second = await take(ledger, limit=2)
    await ledger.jobs.finish("w", [done(first)])
    assert await ledger.runs.cancel("bb") == ["b1", "b2"]
    assert await ledger.runs.cancel("bb") is None
    report = await ledger.runs.report("bb")
    assert report.state == "cancelled"
    assert [b.state for b in report.branches] == ["done", "cancelled", "cancelled"]
    assert report.branches[1].finish_reason == "cancelled"
    assert await ledger.jobs.finish("w", [done(second)]) == [False]
    assert await take(ledger) == []


async def test_cancelling_some_branches_leaves_the_others_and_the_run_alone(ledger: Ledger) -> None:
    await submit(ledger, "aa", 4)
    assert await ledger.runs.cancel("aa", ["b3", "nobody"]) == ["b3"]
    await make_ready(ledger)
    first, second = await take(ledger, limit=2)
    assert await ledger.runs.cancel("aa", ["b1", "b2", "b3"]) == ["b1", "b2"]
    assert await ledger.jobs.finish("w", [done(second)]) == [False]
    assert await take(ledger) == []
    assert (await ledger.runs.report("aa")).state == "running"
    assert await ledger.jobs.finish("w", [done(first)]) == [True]
    report = await ledger.runs.report("aa")
    assert report.state == "completed_with_errors"
    assert [b.state for b in report.branches] == ["done", "cancelled", "cancelled", "cancelled"]


async def test_cancelling_every_branch_by_name_cancels_the_run_and_drops_its_prefill(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    assert await ledger.runs.cancel("aa", ["b0", "b1"]) == ["b0", "b1"]
    assert (await ledger.runs.report("aa")).state == "cancelled"
    assert await take_prefill(ledger) == []


async def test_a_branch_past_its_own_deadline_fails_and_its_run_goes_on(ledger: Ledger) -> None:
    hurried, patient = branches_of(2)
    hurried = hurried.model_copy(update={"deadline_s": 0.001})
    await ledger.runs.submit(
        run_of("aa"), [hurried, patient], DOCUMENT, deadline_ms=DAY_MS, ttl_ms=DAY_MS, any_model=True
    )

    async def swept() -> bool:
        return (await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)).deadlines == 1

    await eventually(swept)
    await make_ready(ledger)
    [taken] = await take(ledger)
    assert await ledger.jobs.finish("w", [done(taken)]) == [True]
    report = await ledger.runs.report("aa")
    assert (report.state, [b.state for b in report.branches]) == ("completed_with_errors", ["failed", "done"])
    assert report.branches[0].error is not None
    assert report.branches[0].error.code == "deadline_exceeded"
    assert "its deadline of 0.001 s" in report.branches[0].error.message


async def test_cancelling_one_run_leaves_a_shared_prefill_to_the_other(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await submit(ledger, "bb", 1)
    await ledger.runs.cancel("aa")
    await make_ready(ledger)
    assert [b.run_id for b in await take(ledger)] == ["bb"]


async def test_jobs_handed_back_cost_nobody_anything(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    taken = await take(ledger, "w1")
    assert await ledger.jobs.hand_back("w1", [b.job_id for b in taken], reason="stopping") == 2
    again = await take(ledger, "w2")
    assert [(b.index, b.attempt, b.is_solo) for b in again] == [(0, 2, False), (1, 2, False)]


async def test_snapshots_of_unfinished_runs_are_pinned_and_evicted_ones_forgotten(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    assert await ledger.jobs.pinned_snapshots() == {"5a" * 16}
    (branch,) = await take(ledger)
    await ledger.jobs.finish("w", [done(branch)])
    assert await ledger.jobs.pinned_snapshots() == frozenset()
    await ledger.jobs.forget_snapshots(["5a" * 16])
    await submit(ledger, "bb", 1)
    assert len(await take_prefill(ledger)) == 1


async def test_an_alias_that_nobody_announced_is_refused_naming_the_known_ones(ledger: Ledger) -> None:
    await ledger.fleet.announce("big")
    with pytest.raises(UnknownModel, match="known models: big"):
        await ledger.runs.submit(
            run_of("aa"), branches_of(1), DOCUMENT, deadline_ms=DAY_MS, ttl_ms=DAY_MS, any_model=False
        )
    with pytest.raises(RunNotFound):
        await ledger.runs.report("aa")


async def test_the_queue_size_is_what_really_waits(ledger: Ledger) -> None:
    await submit(ledger, "aa", 3)
    await make_ready(ledger)
    await take(ledger, limit=1)
    assert await ledger.fleet.queue_depth("branch", "default") == 2


@pytest.fixture
async def raw(settings: Settings) -> AsyncIterator[Any]:
    """A client of the test's database, to do what nobody should."""
    client = connect(settings.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


async def crash_until_alone(ledger: Ledger, settings: Settings, run_id: str) -> None:
    """Two crashes of the whole batch: from now on its branches run alone."""
    for crash in (1, 2):
        await take(ledger, f"crashed{crash}", lease_ms=1)
        await sweep_until(ledger, settings, crash + 1, run_id)


async def test_suspects_are_taken_one_at_a_time_by_a_worker_that_holds_nothing(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 3)
    await make_ready(ledger)
    await crash_until_alone(ledger, settings, "aa")
    await submit(ledger, "bb", 2)
    assert await ledger.jobs.take_branches("default", "busy", limit=9, lease_ms=LEASE_MS, held=1) == []
    for _ in range(3):
        (suspect,) = await take(ledger)
        assert (suspect.run_id, suspect.is_solo) == ("aa", True)
    assert [b.run_id for b in await take(ledger)] == ["bb", "bb"]


async def test_leases_that_ran_out_while_nobody_could_renew_them_are_given_once_more(
    ledger: Ledger, raw: Any
) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger, "w1", lease_ms=1)
    await raw.set(keys.SWEPT, 1)  # long ago
    counts = await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
    assert counts.leases == 0
    assert await beat(ledger, "w1", [branch.job_id]) == []
    assert await ledger.jobs.finish("w1", [done(branch)]) == [True]


async def test_a_renewed_lease_runs_out_when_its_worker_stays_away(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    await take(ledger, "w1", lease_ms=1)
    await raw.set(keys.SWEPT, 1)

    async def is_queued_again() -> bool:
        await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=500)
        return (await ledger.runs.report("aa")).branches[0].attempts == 2

    await eventually(is_queued_again)


async def test_a_message_of_another_version_fails_alone_with_a_reason(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 3)
    await make_ready(ledger)
    await raw.hset(keys.key("branch", run="aa", index=1), "spec", pack({"v": 99, "name": "b1"}))
    await raw.hset(keys.key("branch", run="aa", index=2), "spec", b"\x80\x04cos\nsystem\n")
    assert [b.index for b in await take(ledger)] == [0]
    report = await ledger.runs.report("aa")
    assert [b.state for b in report.branches] == ["running", "failed", "failed"]
    assert report.branches[1].error is not None
    assert report.branches[1].error.code == "protocol"
    assert "version 99" in report.branches[1].error.message
    await submit(ledger, "bb", 1)
    await raw.hset(keys.key("prefix", prefix=run_of("bb").prefix.prefix_id), "spec", pack({"v": 99}))
    assert await take(ledger) == []
    assert (await ledger.runs.report("bb")).state == "failed"


async def test_a_prefix_of_another_version_fails_its_runs_with_a_reason(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 2)
    await raw.hset(keys.key("prefix", prefix=run_of("aa").prefix.prefix_id), "spec", pack({"v": 99}))
    assert await take_prefill(ledger) == []
    report = await ledger.runs.report("aa")
    assert report.state == "failed"
    assert report.error is not None
    assert "version 99" in report.error.message
    await submit(ledger, "bb", 1)
    assert len(await take_prefill(ledger)) == 1


async def test_what_others_put_into_our_sets_stops_nobody(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    junk: dict[bytes | str, float] = {b"\x80\x04.": 1, "": 1, "b:zz": 1, "b:zz:0:1": 1, "p:zz:1": 1, "x:1:2:3": 1}
    for name in (
        keys.LEASES,
        keys.READY,
        keys.ACTIVE,
        keys.WORKERS,
        keys.RUNS,
        keys.key("queue", role="branch", alias="default"),
    ):
        await raw.zadd(name, junk)
    await raw.hset(keys.key("worker", worker="x:1:2:3"), mapping={"beat_ms": "soon", "id": b"\xff"})
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
    assert await ledger.fleet.workers() == []
    assert [summary.run_id for summary in await ledger.runs.listing(20)] == ["aa"]
    (branch,) = await take(ledger, limit=99)
    assert await ledger.jobs.finish("w", [done(branch)]) == [True]


async def test_a_run_that_was_deleted_by_hand_takes_nobody_with_it(ledger: Ledger, raw: Any) -> None:
    await submit(ledger, "aa", 1)
    await submit(ledger, "bb", 1)
    await raw.delete(keys.key("run", run="aa"))  # while it waits
    await make_ready(ledger)
    taken = await take(ledger)
    await submit(ledger, "cc", 2)
    taken += await take(ledger, limit=1)
    assert [b.run_id for b in taken] == ["bb", "cc"]
    await raw.delete(keys.key("run", run="cc"))  # while it runs, and is queued
    assert await take(ledger) == []
    assert await beat(ledger, "w", [b.job_id for b in taken]) == [taken[1].job_id]
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS, stale_ms=0)
    assert await ledger.jobs.finish("w", [done(taken[1]), done(taken[0])]) == [False, True]


async def test_a_heartbeat_makes_its_model_known_to_a_redis_that_was_emptied(ledger: Ledger, raw: Any) -> None:
    await raw.flushall()
    info = WorkerInfo(id="w", role="branch", model="big", pid=1, host="h", slots=8, identity="one")
    await ledger.fleet.beat(info, [], lease_ms=LEASE_MS)
    assert await ledger.fleet.known_models() == ["big"]
    await ledger.fleet.announce("big", identity="two", fingerprint="f")
    await ledger.fleet.beat(info, [], lease_ms=LEASE_MS)
    assert await raw.hget(keys.key("model", alias="big"), "identity") == b"two"


async def test_a_branch_handed_back_with_a_delay_waits_for_it(ledger: Ledger) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger)
    assert await ledger.jobs.hand_back("w", [branch.job_id], reason="no cells", delay_ms=60_000) == 1
    assert await take(ledger) == []
    assert await ledger.fleet.queue_depth("branch", "default") == 1


async def test_a_worker_of_a_newer_version_is_listed_all_the_same(ledger: Ledger, raw: Any) -> None:
    await beat(ledger, "w", [])
    await raw.hset(keys.key("worker", worker="w"), "mood", "good")
    assert [live.info.id for live in await ledger.fleet.workers()] == ["w"]


async def test_the_index_of_runs_does_not_outgrow_the_runs_that_are_kept(ledger: Ledger, raw: Any) -> None:
    await raw.zadd(keys.RUNS, {f"expired{number}": number for number in range(100)})
    for number in range(60):
        await submit(ledger, f"aa{number}", 1)
    assert await raw.zcard(keys.RUNS) <= 60 + 10
    assert len(await ledger.runs.listing(1000)) == 60


async def submit_ready(ledger: Ledger, run_id: str, document: bytes, snapshot: str, count: int) -> None:
    """A run whose snapshot is registered and whose branches are queued."""
    await submit(ledger, run_id, count, document)
    (prefill,) = await take_prefill(ledger)
    assert await ledger.jobs.register("p", prefill, info_of(snapshot), decoded=True, ttl_ms=DAY_MS)


async def test_a_worker_takes_branches_of_its_residents_first(ledger: Ledger) -> None:
    await submit_ready(ledger, "aa", b"first", "1a" * 16, 2)
    await submit_ready(ledger, "bb", b"second", "2b" * 16, 2)
    taken = await ledger.jobs.take_branches(
        "default", "w", limit=3, lease_ms=LEASE_MS, residents=["2b" * 16], patience_ms=60_000
    )
    assert [(b.run_id, b.index) for b in taken] == [("bb", 0), ("bb", 1), ("aa", 0)]
    assert [b.run_id for b in await take(ledger)] == ["aa"]


async def test_a_branch_that_has_waited_long_enough_is_taken_before_those_of_residents(ledger: Ledger) -> None:
    await submit_ready(ledger, "aa", b"first", "1a" * 16, 1)
    await submit_ready(ledger, "bb", b"second", "2b" * 16, 1)

    async def oldest_is_taken() -> bool:
        (taken,) = await ledger.jobs.take_branches(
            "default", "w", limit=1, lease_ms=LEASE_MS, residents=["2b" * 16], patience_ms=50
        )
        if taken.run_id == "aa":
            return True
        await ledger.jobs.hand_back("w", [taken.job_id], reason="not this one")
        return False

    await eventually(oldest_is_taken)
