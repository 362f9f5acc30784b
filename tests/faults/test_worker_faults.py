"""Workers that are killed, stopped, told to end, or kill themselves: every run ends, each branch once."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, RunHandle, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.events import BranchStarted, BranchText, PrefillProgress
from swarmkv.protocol.settings import Settings
from tests.fault_support import FaultyFleet, Heard, check_each_ended_once, heard_of, store_files, until
from tests.processes import WorkerProcess
from tests.waiting import eventually, wait_until

DOCUMENT = "The retry limit is four.\n" * 20
LONG_DOCUMENT = "The retry limit is four.\n" * 120  # 24 steps of the prefill
SLOW = {"decode_s": 0.05}
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
MEDIUM = Sampling(temperature=0, max_tokens=60, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=900, ignore_eos=True)
POISON = "\x01\x02\x01"


async def is_absent(producer: Producer, worker: WorkerProcess) -> bool:
    return worker.pid not in [live.info.pid for live in await producer.workers()]


# -- SIGKILL


@pytest.mark.parametrize("other", ["is running", "starts later"])
async def test_a_branch_worker_killed_over_eight_branches_costs_only_time(
    other: str, fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    victim = fleet.start_faulty("branch", tiny_llama_path, SLOW)
    await fleet.beats(producer, prefill, victim)
    run = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(8)], sampling=MEDIUM)
    await until(run, BranchText, 8)
    if other == "is running":
        await fleet.beats(producer, fleet.start("branch", tiny_llama_path))
    victim.kill()
    if other == "starts later":
        fleet.start("branch", tiny_llama_path)
    heard = await heard_of(run)
    report = await run.report()
    assert report.state == "done"
    assert [branch.attempts for branch in report.branches] == [2] * 8
    assert heard.reasons == {"its worker died"}
    assert report.prefills_run == 1
    check_each_ended_once(heard, report)


async def test_a_prefill_worker_killed_halfway_is_followed_by_another(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    victim = fleet.start_faulty("prefill", tiny_llama_path, SLOW)
    branch = fleet.start("branch", tiny_llama_path)
    await fleet.beats(producer, victim, branch)
    run = await producer.submit(LONG_DOCUMENT, ["What?"], sampling=SHORT)
    await until(run, PrefillProgress)
    victim.kill()
    fleet.start("prefill", tiny_llama_path)
    report = await run.results(60)
    assert (report.state, report.prefills_run) == ("done", 1)
    assert report.branches[0].attempts == 1
    snapshots, temporary = store_files(settings)
    assert (len(snapshots), temporary) == (1, [])


async def test_a_prefill_worker_killed_while_it_writes_leaves_nothing_half_written(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "writing"
    victim = fleet.start_faulty("prefill", tiny_llama_path, {"hang_in_write": str(marker)})
    branch = fleet.start("branch", tiny_llama_path)
    await fleet.beats(producer, victim, branch)
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    wait_until(marker.exists, timeout_s=30)
    snapshots, temporary = store_files(settings)
    assert (snapshots, len(temporary)) == ([], 1)
    victim.kill()
    fleet.start("prefill", tiny_llama_path)
    report = await run.results(60)
    assert (report.state, report.prefills_run) == ("done", 1)
    snapshots, temporary = store_files(settings)
    assert (len(snapshots), temporary) == (1, [])


# -- SIGTERM


async def test_a_worker_told_to_stop_finishes_short_branches_and_hands_back_long_ones(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    leaving = fleet.start_faulty("branch", tiny_llama_path, SLOW, grace_s=2.0)
    await fleet.beats(producer, prefill, leaving)
    short = [{"name": f"short-{n}", "prompt": "What?", "sampling": SHORT} for n in range(4)]
    long = [{"name": f"long-{n}", "prompt": "Why?", "sampling": LONG} for n in range(2)]
    run = await producer.submit(DOCUMENT, [*short, *long])
    await until(run, BranchStarted, 6)
    leaving.send(signal.SIGTERM)
    await fleet.beats(producer, fleet.start("branch", tiny_llama_path))
    assert leaving.process.wait(timeout=30) == 0, leaving.log
    assert await is_absent(producer, leaving)
    heard = await heard_of(run)
    report = await run.report()
    assert report.state == "done"
    assert {b.name: b.attempts for b in report.branches} == {
        **{f"short-{n}": 1 for n in range(4)},
        **{f"long-{n}": 2 for n in range(2)},
    }
    assert heard.reasons == {"its worker is stopping"}
    check_each_ended_once(heard, report)


async def test_six_deploys_during_one_branch_are_nobodys_fault(
    fleet: FaultyFleet, producer: Producer, settings: Settings
) -> None:
    null: dict[str, Any] = {"null_engine": True, "grace_s": 0.1}
    await fleet.beats(producer, fleet.start("prefill", "null", **null))
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    for attempt in range(1, 7):
        worker = fleet.start_faulty("branch", "null", {"null_s": 600}, **null)

        async def is_taken(attempt: int = attempt) -> bool:
            branch = (await run.report()).branches[0]
            return (branch.state, branch.attempts) == ("running", attempt)

        await eventually(is_taken, timeout_s=30)
        assert worker.end() == 0, worker.log
    fleet.start("branch", "null", **null)
    report = await run.results(30)
    assert (report.state, report.branches[0].attempts) == ("done", 7)


async def test_a_worker_that_waits_for_its_broker_can_be_told_to_stop(
    fleet: FaultyFleet, settings: Settings
) -> None:
    worker = fleet.start("branch", "null", null_engine=True, redis_url="redis://127.0.0.1:1/0")
    wait_until(lambda: "waiting for Redis" in worker.log, timeout_s=30)
    assert worker.end() == 0, worker.log


# -- SIGSTOP


async def test_a_worker_asleep_beyond_its_lease_neither_overwrites_nor_repeats_and_is_useful_again(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    sleeper = fleet.start_faulty("branch", tiny_llama_path, SLOW)
    await fleet.beats(producer, prefill, sleeper)
    run = await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=MEDIUM)
    await until(run, BranchText, 2)
    sleeper.send(signal.SIGSTOP)
    other = fleet.start("branch", tiny_llama_path)
    heard = await heard_of(run)
    report = await run.report()
    sleeper.send(signal.SIGCONT)
    wait_until(lambda: "no longer ours" in sleeper.log, timeout_s=30)
    await fleet.beats(producer, sleeper)
    assert other.end() == 0
    assert [branch.attempts for branch in report.branches] == [2, 2]
    check_each_ended_once(heard, report)
    assert await run.report() == report
    again = await (await producer.submit(DOCUMENT, ["And now?"], sampling=SHORT)).results(30)
    assert again.state == "done"
    assert f"-{sleeper.pid}-" in (again.branches[0].worker or "")


# -- a busy tokenizer


async def test_a_document_that_is_long_to_tokenise_stops_no_heartbeat(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    quick_lease: dict[str, Any] = {"lease_s": 1.5, "heartbeat_s": 0.25}
    worker = fleet.start_faulty("all", tiny_llama_path, {"tokenise_s": 2.0}, **quick_lease)
    await fleet.beats(producer, worker)
    first = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    slow = await producer.submit("Another document.", ["What?"], sampling=SHORT)
    quick = await producer.submit(DOCUMENT, ["Why?"] * 4, sampling=SHORT)
    reports = [first, await slow.results(30), await quick.results(30)]
    for report in reports:
        assert report.state == "done"
        assert {branch.attempts for branch in report.branches} == {1}
    assert "no longer ours" not in worker.log


# -- a branch that kills its worker


async def test_a_branch_that_kills_its_worker_is_parked_all_others_are_done_and_a_mended_worker_answers_it(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    quick: dict[str, Any] = {"lease_s": 1.0, "heartbeat_s": 0.25}
    await fleet.beats(producer, fleet.start("prefill", tiny_llama_path, **quick))

    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        faults = {"abort_on": POISON, "decode_s": 0.02}
        started.append(fleet.start_faulty("branch", tiny_llama_path, faults, **quick))
        return started[-1]

    async def supervise() -> None:
        worker = start()
        while True:
            if worker.process.poll() is not None:
                assert worker.process.returncode == -signal.SIGABRT, worker.log
                worker = start()
            await asyncio.sleep(0.05)

    supervisor = asyncio.create_task(supervise())
    prompts = [("poison", f"Now {POISON}!"), *((f"good-{n}", "What?") for n in range(4))]
    first = await producer.submit(DOCUMENT, prompts, sampling=MEDIUM)
    second = await producer.submit(DOCUMENT, ["Why?"] * 3, sampling=SHORT)
    reports = await asyncio.wait_for(asyncio.gather(first.results(), second.results()), 120)
    supervisor.cancel()
    await asyncio.gather(supervisor, return_exceptions=True)
    assert [report.state for report in reports] == ["completed_with_errors", "done"]
    assert {b.name: b.state for b in reports[0].branches} == {
        "poison": "failed",
        **{f"good-{n}": "done" for n in range(4)},
    }
    error = reports[0]["poison"].error
    assert error is not None
    assert error.code == "crashes_worker"
    deaths = [worker for worker in fleet.processes if worker.process.poll() == -signal.SIGABRT]
    # Two that others share, those alone, and one that a stalled machine takes for a lost lease.
    assert len(deaths) <= 3 + settings.max_solo_crashes
    heard = await heard_of(first)
    assert heard.ends == {branch.name: 1 for branch in reports[0].branches}
    (entry,) = await producer.dead()
    assert (entry.path, entry.solo_crashes) == (f"{first.id}/poison", settings.max_solo_crashes)
    started[-1].process.kill()
    fleet.start("branch", tiny_llama_path, **quick)
    assert await first.retry() == ("poison",)
    answered = await first.results(60)
    assert (answered.state, await producer.dead()) == ("done", [])
    assert answered["poison"].attempts == entry.attempts + 1
    assert [b for b in answered.branches if b.name != "poison"] == list(reports[0].branches[1:])


# -- cancelling


async def test_cancelling_a_long_prefill_stops_the_engine_and_leaves_no_file(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    prefill = fleet.start_faulty("prefill", tiny_llama_path, {"decode_s": 0.2})
    branch = fleet.start("branch", tiny_llama_path)
    await fleet.beats(producer, prefill, branch)
    run = await producer.submit(LONG_DOCUMENT, ["What?"], sampling=SHORT)
    await until(run, PrefillProgress)
    assert await run.cancel()
    assert (await run.report()).state == "cancelled"
    other = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert other.state == "done"
    snapshots, temporary = store_files(settings)
    assert (len(snapshots), temporary) == (1, [])
    assert prefill.log.count("Prefilled") == 1


async def test_a_prefill_cancelled_before_the_engine_has_it_never_starts(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    prefill = fleet.start_faulty("prefill", tiny_llama_path, {"tokenise_s": 1.0})
    branch = fleet.start("branch", tiny_llama_path)
    await fleet.beats(producer, prefill, branch)
    run = await producer.submit(LONG_DOCUMENT, ["What?"], sampling=SHORT)

    async def is_taken() -> bool:
        return (await run.report()).state == "prefilling"

    await eventually(is_taken)
    assert await run.cancel()
    other = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert other.state == "done"
    assert prefill.log.count("Prefilled") == 1


async def test_cancelling_a_queued_and_a_running_run_ends_those_two_alone(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    branch = fleet.start_faulty("branch", tiny_llama_path, {"decode_s": 0.02}, slots=2)
    await fleet.beats(producer, prefill, branch)

    async def submit(sampling: Sampling) -> RunHandle:
        return await producer.submit(DOCUMENT, ["What?"], sampling=sampling)

    running, survivor = await submit(LONG), await submit(MEDIUM)
    await asyncio.gather(until(running, BranchText), until(survivor, BranchText))
    queued, next_one = await submit(LONG), await submit(SHORT)
    assert await queued.cancel()
    assert await running.cancel()
    reports = [await run.results(30) for run in (running, queued, survivor, next_one)]
    assert [report.state for report in reports] == ["cancelled", "cancelled", "done", "done"]
    assert [report.branches[0].attempts for report in reports[2:]] == [1, 1]

    async def is_free() -> bool:
        return [live.info.slots_used for live in await producer.workers() if live.info.role == "branch"] == [0]

    await eventually(is_free)


# -- time


@pytest.mark.parametrize("clock_s", [-120, 120])
async def test_a_worker_whose_clock_is_two_minutes_off_starts_jobs_at_once(
    clock_s: int, fleet: FaultyFleet, producer: Producer
) -> None:
    for role in ("prefill", "branch"):
        fleet.start_faulty(role, "null", {"clock_s": clock_s}, null_engine=True)
    await fleet.ready(producer, 2)
    report = await (await producer.submit(DOCUMENT, ["What?"] * 20, sampling=SHORT)).results(10)
    assert report.state == "done"
    for branch in report.branches:
        assert branch.attempts == 1
        assert all(0 <= ms < 10_000 for ms in branch.timings_ms.model_dump().values())
    assert all(0 <= live.last_beat_age_s < 10 for live in await producer.workers())


async def test_a_run_without_workers_warns_at_once_and_ends_by_its_deadline(producer: Producer) -> None:
    started_s = time.monotonic()
    run = await producer.submit(DOCUMENT, ["What?"], any_model=True, deadline_s=1.0)
    assert [warning.message.split()[1] for warning in run.warnings] == ["prefill", "branch"]
    report = await run.results(20)
    assert time.monotonic() - started_s >= 1.0
    assert report.state == "failed"
    assert report.error is not None
    assert report.error.code == "deadline_exceeded"
    assert heard_types(await heard_of(run)) == ["warning", "warning", "branch_done", "run_done"]


def heard_types(heard: Heard) -> list[str]:
    return [event.type for event in heard.events]


# -- many


async def test_four_workers_post_each_of_a_thousand_results_once(
    fleet: FaultyFleet, producer: Producer, settings: Settings
) -> None:
    fleet.start("prefill", "null", null_engine=True)
    for _ in range(4):
        fleet.start("branch", "null", null_engine=True, slots=64, residents=3)
    await fleet.ready(producer, 5)
    prompts = [f"Question {n}?" for n in range(250)]
    runs = [await producer.submit(f"{DOCUMENT} {n}", prompts, sampling=SHORT) for n in range(4)]
    reports = await asyncio.wait_for(asyncio.gather(*(run.results() for run in runs)), 60)
    for run, report in zip(runs, reports, strict=True):
        assert report.state == "done"
        assert {branch.attempts for branch in report.branches} == {1}
        check_each_ended_once(await heard_of(run), report)
    client = connect(settings.redis_url, timeout_s=5)
    for key in ("queue", "leases", "ready", "active", "arq"):
        left = [name async for name in client.scan_iter(f"*{key}*")]
        assert [name for name in left if not name.endswith(b"health-check")] == [], key
    assert await client.hget(keys.key("model_stats", alias="default"), "branches_done") == b"1000"  # type: ignore[misc]
    await client.aclose(close_connection_pool=True)
