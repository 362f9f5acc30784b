"""Branches that were given up, and their way back: the dead-letter list and retries, against a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkv.producer import Producer, SyncProducer
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import (
    DocumentGone,
    EntryNotFound,
    InvalidInput,
    Overloaded,
    RunNotFound,
    SnapshotMissing,
    SwarmkvError,
)
from swarmkv.protocol.events import BranchDone, BranchRestarted, RunDone
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, Limits, Outcome, TakenBranch
from swarmkv.protocol.messages import BranchResult, ErrorInfo
from swarmkv.protocol.settings import Settings
from tests.integration.test_ledger import (
    DAY_MS,
    DOCUMENT,
    LEASE_MS,
    done,
    make_ready,
    run_of,
    submit,
    sweep_until,
    take,
    take_prefill,
)
from tests.waiting import eventually

EVERY_BROKER = True


@pytest.fixture
async def raw(settings: Settings) -> AsyncIterator[Any]:
    """A client of the test's database, to look and to spoil."""
    client = connect(settings.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


def failed(branch: TakenBranch) -> Outcome:
    error = ErrorInfo(code="branch_too_long", message="too long")
    return Outcome(branch, "failed", BranchResult(finish_reason="error", error=error))


async def half_failed(ledger: Ledger, run_id: str = "aa") -> tuple[TakenBranch, TakenBranch]:
    """A finished run of two branches: the first done, the second failed."""
    await submit(ledger, run_id, 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    assert await ledger.jobs.finish("w", [done(first, "kept"), failed(second)]) == [True, True]
    return first, second


async def parked(ledger: Ledger, settings: Settings, run_id: str = "aa") -> None:
    """A run of one branch that killed its worker until it was given up."""
    await submit(ledger, run_id, 1)
    await make_ready(ledger)
    for crash in range(1, 5):
        await take(ledger, f"w{crash}", lease_ms=1)
        await sweep_until(ledger, settings, crash + 1, run_id)
    assert (await ledger.runs.report(run_id)).state == "failed"


# -- retrying a run


async def test_failed_branches_are_new_attempts_and_done_ones_keep_their_results(ledger: Ledger) -> None:
    _, old = await half_failed(ledger)
    assert await ledger.recovery.retry("aa", ["failed"]) == ["b1"]
    report = await ledger.runs.report("aa")
    assert (report.state, [b.state for b in report.branches]) == ("running", ["done", "queued"])
    assert (report.branches[1].error, report.branches[1].text) == (None, "")
    (new,) = await take(ledger, "w")
    assert (new.index, new.attempt) == (1, old.attempt + 1)
    assert await ledger.jobs.finish("w", [done(old, "late"), done(new, "new")]) == [False, True]
    report = await ledger.runs.report("aa")
    assert (report.state, [b.text for b in report.branches]) == ("done", ["kept", "new"])


async def test_a_retried_run_has_an_end_again_and_followers_read_to_the_last_one(
    ledger: Ledger, settings: Settings
) -> None:
    await half_failed(ledger)
    assert await ledger.runs.wait_done("aa", 10)
    await ledger.recovery.retry("aa", ["failed"])
    assert not await ledger.runs.wait_done("aa", 10)
    (new,) = await take(ledger)
    await ledger.jobs.finish("w", [done(new)])
    assert await ledger.runs.wait_done("aa", 10)
    async with Producer(settings=settings) as producer:
        events = [event async for event in producer.run("aa").events()]
    assert [event.state for event in events if isinstance(event, RunDone)] == ["done"]
    restarted = events.index(next(event for event in events if isinstance(event, BranchRestarted)))
    assert isinstance(events[-1], RunDone)
    assert [type(event) for event in events[restarted + 1 :]].count(BranchDone) == 1


async def test_cancelled_branches_are_retried_unless_only_failed_ones_are_asked_for(ledger: Ledger) -> None:
    await submit(ledger, "aa", 2)
    await ledger.runs.cancel("aa")
    assert await ledger.recovery.retry("aa", ["failed"]) == []
    assert (await ledger.runs.report("aa")).state == "cancelled"
    assert await ledger.recovery.retry("aa", ["failed", "cancelled"]) == ["b0", "b1"]
    report = await ledger.runs.report("aa")
    assert (report.state, [b.state for b in report.branches]) == ("queued", ["waiting", "waiting"])
    await make_ready(ledger)
    assert await ledger.jobs.finish("w", [done(branch) for branch in await take(ledger)]) == [True, True]
    assert (await ledger.runs.report("aa")).state == "done"


async def test_a_snapshot_that_is_gone_is_prefilled_once_for_all_retried_branches(ledger: Ledger) -> None:
    await half_failed(ledger)
    await ledger.jobs.forget_snapshots(["5a" * 16])
    await submit(ledger, "bb", 1, document=b"another document")
    await ledger.runs.cancel("bb")
    assert await ledger.recovery.retry("aa", ["failed"]) == ["b1"]
    assert len(await take_prefill(ledger)) == 1
    assert (await ledger.runs.report("aa")).state == "prefilling"


async def test_a_prefix_that_expired_is_written_again(ledger: Ledger, raw: Any) -> None:
    await half_failed(ledger)
    prefix = keys.key("prefix", prefix=run_of("aa").prefix.prefix_id)
    await raw.delete(prefix)
    await ledger.recovery.retry("aa", ["failed"])
    (prefill,) = await take_prefill(ledger)
    assert prefill.spec == run_of("aa").prefix
    assert await raw.pttl(prefix) > DAY_MS


async def test_a_run_whose_document_is_gone_is_refused_and_stays_as_it_was(ledger: Ledger, raw: Any) -> None:
    await half_failed(ledger)
    await raw.delete(keys.key("document", digest=digest_bytes(DOCUMENT)))
    before = {key: await raw.dump(key) for key in await raw.keys("*")}
    with pytest.raises(DocumentGone, match="run aa"):
        await ledger.recovery.retry("aa", ["failed"])
    assert {key: await raw.dump(key) for key in await raw.keys("*")} == before


async def test_a_retried_run_ends_by_a_new_deadline_and_lives_as_long_as_a_new_one(
    ledger: Ledger, raw: Any
) -> None:
    await half_failed(ledger)
    for key in await raw.keys("swarmkv:run:*"):
        await raw.pexpire(key, 60_000)
    await ledger.recovery.retry("aa", ["failed"], deadline_ms=1)
    for key in await raw.keys("swarmkv:run:*"):
        assert await raw.pttl(key) > DAY_MS - 60_000

    async def swept() -> bool:
        return (await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)).deadlines == 1

    await eventually(swept)
    report = await ledger.runs.report("aa")
    assert report.state == "completed_with_errors"
    assert report.branches[1].error is not None
    assert report.branches[1].error.code == "deadline_exceeded"


async def test_the_time_between_end_and_retry_is_no_wall_time(ledger: Ledger, raw: Any) -> None:
    await half_failed(ledger)
    key = keys.key("run", run="aa")
    for field in ("created_ms", "opened_ms", "finished_ms"):
        await raw.hincrby(key, field, -DAY_MS)  # it all happened yesterday
    await ledger.recovery.retry("aa", ["failed"])
    assert (await ledger.runs.report("aa")).wall_ms < DAY_MS / 2


async def test_an_unknown_run_is_refused_and_a_done_one_has_nothing_to_retry(ledger: Ledger) -> None:
    with pytest.raises(RunNotFound):
        await ledger.recovery.retry("ff", ["failed"])
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    await ledger.jobs.finish("w", [done(branch) for branch in await take(ledger)])
    assert await ledger.recovery.retry("aa", ["failed", "cancelled"]) == []
    assert (await ledger.runs.report("aa")).state == "done"


async def test_a_failed_branch_of_an_open_run_is_put_back_without_another_end_or_deadline(
    ledger: Ledger, raw: Any
) -> None:
    await submit(ledger, "aa", 2)
    await make_ready(ledger)
    first, second = await take(ledger)
    await ledger.jobs.finish("w", [failed(first)])
    deadline = await raw.zscore(keys.ACTIVE, "aa")
    assert await ledger.recovery.retry("aa", ["failed"], deadline_ms=5) == ["b0"]
    assert await raw.zscore(keys.ACTIVE, "aa") == deadline
    (again,) = await take(ledger)
    assert await ledger.jobs.finish("w", [done(again), done(second)]) == [True, True]
    assert (await ledger.runs.report("aa")).state == "done"


async def test_retries_are_held_back_by_the_limit_on_open_branches(ledger: Ledger) -> None:
    await half_failed(ledger)
    await submit(ledger, "bb", 3)
    with pytest.raises(Overloaded, match="holds 3 open branches; 1 more would pass the limit of 3"):
        await ledger.recovery.retry("aa", ["failed"], limits=Limits(branches=3))
    assert (await ledger.runs.report("aa")).state == "completed_with_errors"


# -- the dead-letter list


async def test_a_branch_that_kills_its_workers_gets_an_entry_without_a_word_of_its_text(
    ledger: Ledger, settings: Settings, raw: Any
) -> None:
    await parked(ledger, settings)
    (entry,) = await ledger.recovery.dead()
    assert (entry.id, entry.path, entry.model) == ("aa:0", "aa/b0", "default")
    assert (entry.error.code, entry.attempts, entry.crashes, entry.solo_crashes) == ("crashes_worker", 4, 3, 2)
    report = await ledger.runs.report("aa")
    assert report.branches[0].error == entry.error
    stored = str(await raw.hgetall(keys.key("dead", run="aa", index=0)))
    assert "question" not in stored
    assert 0 < await raw.pttl(keys.key("dead", run="aa", index=0)) <= DAY_MS


async def test_branches_that_ran_out_of_rebuilds_and_of_a_deadly_prefill_get_entries(
    ledger: Ledger, settings: Settings
) -> None:
    await submit(ledger, "aa", 1)
    await make_ready(ledger)
    (branch,) = await take(ledger)
    await ledger.jobs.rebuild("w", branch, SnapshotMissing("gone"), max_rebuilds=0)
    await submit(ledger, "bb", 2, document=b"deadly")
    for _ in range(settings.max_solo_crashes + 1):
        await take_prefill(ledger, lease_ms=1)

        async def swept() -> bool:
            counts = await ledger.fleet.sweep(max_solo_crashes=settings.max_solo_crashes, lease_ms=LEASE_MS)
            return counts.leases == 1

        await eventually(swept)
    entries = {entry.id: entry for entry in await ledger.recovery.dead()}
    assert {id_: entry.error.code for id_, entry in entries.items()} == {
        "aa:0": "snapshot_missing",
        "bb:0": "crashes_worker",
        "bb:1": "crashes_worker",
    }
    assert entries["aa:0"].rebuilds == 1


async def test_a_branch_that_failed_by_itself_and_one_of_a_refused_prefill_get_no_entry(ledger: Ledger) -> None:
    await half_failed(ledger)
    await submit(ledger, "bb", 1, document=b"too long")
    (prefill,) = await take_prefill(ledger)
    await ledger.jobs.fail_prefill("p", prefill, SwarmkvError("too long"))
    assert await ledger.recovery.dead() == []


async def test_a_parked_branch_that_is_retried_leaves_the_list_runs_alone_and_may_be_parked_again(
    ledger: Ledger, settings: Settings
) -> None:
    await parked(ledger, settings)
    assert await ledger.recovery.retry("aa", ["failed"]) == ["b0"]
    assert await ledger.recovery.dead() == []
    for crash in (5, 6):
        (branch,) = await take(ledger, f"w{crash}", lease_ms=1)
        assert (branch.attempt, branch.is_solo) == (crash, True)
        await sweep_until(ledger, settings, crash + 1, "aa")
    (entry,) = await ledger.recovery.dead()
    assert (entry.attempts, entry.solo_crashes) == (6, 2)


async def test_dropping_an_entry_forgets_it_and_leaves_its_branch_failed(
    ledger: Ledger, settings: Settings, raw: Any
) -> None:
    await parked(ledger, settings)
    entry = await ledger.recovery.dead_branch("aa/b0")
    assert entry == await ledger.recovery.dead_branch("aa:0")
    assert await ledger.recovery.drop([entry]) == 1
    assert await ledger.recovery.drop([entry]) == 0
    assert await raw.exists(keys.DEAD, keys.key("dead", run="aa", index=0)) == 0
    assert (await ledger.runs.report("aa")).state == "failed"
    for name in ("aa:0", "aa/b0", "", "*", "aa:99999999", "\ud800"):
        with pytest.raises(EntryNotFound):
            await ledger.recovery.dead_branch(name)


async def test_the_list_is_bounded_and_forgets_the_oldest_first(
    ledger: Ledger, settings: Settings, raw: Any
) -> None:
    far = 10**13
    await raw.zadd(keys.DEAD, {f"ee:{number}": far + number for number in range(9_999)})
    await raw.zadd(keys.DEAD, {"dd:0": far - 1})
    await raw.hset(keys.key("dead", run="dd", index=0), "name", "oldest")
    await raw.zadd(keys.DEAD, {"cc:0": 1})
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)
    assert await raw.zscore(keys.DEAD, "cc:0") is None  # expired
    assert await raw.zcard(keys.DEAD) == 10_000
    await parked(ledger, settings)
    assert await raw.zcard(keys.DEAD) == 10_000


async def test_what_others_put_into_the_list_hides_no_entry(ledger: Ledger, settings: Settings, raw: Any) -> None:
    await parked(ledger, settings)
    far = 10**13
    await raw.zadd(keys.DEAD, {b"\xff": far, "": far, "aa:1": far, "bb:0": far})
    await raw.hset(keys.key("dead", run="bb", index=0), mapping={"name": b"\xff", "attempts": "many"})
    assert [entry.id for entry in await ledger.recovery.dead()] == ["aa:0"]


# -- through the producer


async def test_the_producer_retries_and_looks_after_the_dead(ledger: Ledger, settings: Settings) -> None:
    await parked(ledger, settings)
    async with Producer(settings=settings) as producer:
        (entry,) = await producer.dead()
        assert await producer.dead_branch(entry.path) == entry
        run = producer.run(entry.run_id)
        with pytest.raises(InvalidInput, match="deadline"):
            await run.retry(deadline_s=-1)
        assert await run.retry(branches=["other"]) == ()
        assert await run.retry(only_failed=True, branches=["b0"]) == ("b0",)
        assert await run.retry() == ()
        assert (await run.report()).state == "running"


def test_the_blocking_facade_retries_and_looks_after_the_dead(settings: Settings) -> None:
    with SyncProducer(settings=settings) as producer:
        run = producer.submit("text", ["What?"], any_model=True)
        run.cancel()
        assert run.retry(only_failed=True) == ()
        assert run.retry() == ("branch-1",)
        assert run.report().state == "queued"
        assert (producer.dead(), producer.drop_dead([])) == ([], 0)
        with pytest.raises(EntryNotFound):
            producer.dead_branch("aa:0")
