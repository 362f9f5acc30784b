"""Work that is told to end, too late, or too early: it ends within a step, and nothing else does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchText, PrefillProgress
from swarmkv.protocol.settings import Settings
from tests.fault_support import FaultyFleet, check_each_ended_once, heard_of, store_files, until
from tests.waiting import eventually

DOCUMENT = "The retry limit is four.\n" * 20
LONG_DOCUMENT = "The retry limit is four.\n" * 120
SLOW = {"decode_s": 0.05}
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=900, ignore_eos=True)


async def test_a_prefill_worker_told_to_stop_hands_its_document_over_and_ends_well(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    leaving = fleet.start_faulty("prefill", tiny_llama_path, {"decode_s": 0.5}, grace_s=0.5, lease_s=60.0)
    await fleet.beats(producer, leaving, fleet.start("branch", tiny_llama_path))
    run = await producer.submit(LONG_DOCUMENT, ["What?"], sampling=SHORT)
    await until(run, PrefillProgress)
    leaving.send(signal.SIGTERM)
    fleet.start("prefill", tiny_llama_path)
    assert leaving.process.wait(timeout=20) == 0, leaving.log
    heard, report = await heard_of(run), await run.results(20)  # long before the lease of the first would end
    assert (report.state, report.prefills_run, report.branches[0].attempts) == ("done", 1, 1)
    check_each_ended_once(heard, report)
    snapshots, temporary = store_files(settings)
    assert (len(snapshots), temporary) == (1, [])


@pytest.mark.parametrize(("document", "event"), [(LONG_DOCUMENT, PrefillProgress), (DOCUMENT, BranchText)])
async def test_a_deadline_ends_its_run_at_work_and_frees_what_it_held_for_others(
    document: str,
    event: type[PrefillProgress | BranchText],
    fleet: FaultyFleet,
    producer: Producer,
    settings: Settings,
    tiny_llama_path: Path,
) -> None:
    worker = fleet.start_faulty("all", tiny_llama_path, {"decode_s": 0.1}, slots=2)
    await fleet.beats(producer, worker)
    late = await producer.submit(document, ["What?", "Why?"], sampling=LONG, deadline_s=2.0)
    await until(late, event)
    other = await producer.submit(DOCUMENT, ["And now?"], sampling=SHORT)
    heard, report = await heard_of(late), await late.report()
    assert report.state == "failed"
    assert {branch.error.code if branch.error else None for branch in report.branches} == {"deadline_exceeded"}
    assert heard.ends == {branch.name: 1 for branch in report.branches}
    assert (await other.results(30)).state == "done"

    async def is_free() -> bool:
        return {live.info.slots_used for live in await producer.workers()} == {0}

    await eventually(is_free)
    assert store_files(settings)[1] == []


async def test_cancelling_what_has_ended_changes_nothing(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    await fleet.beats(producer, fleet.start("all", tiny_llama_path))
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    report = await run.results(30)
    assert not await run.cancel()
    assert await run.report() == report
    check_each_ended_once(await heard_of(run), report)


async def test_a_cancelled_branch_ends_within_a_step_and_gives_its_cells_to_the_next(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    n_ctx = 1024
    worker = fleet.start_faulty("all", tiny_llama_path, SLOW, n_ctx=n_ctx, slots=4)
    await fleet.beats(producer, worker)
    greedy = Sampling(temperature=0, max_tokens=400, ignore_eos=True)
    first = await producer.submit(DOCUMENT, ["What?"], sampling=greedy)
    await until(first, BranchText)
    second = await producer.submit(DOCUMENT, ["Why?"], sampling=greedy)  # no cells for both

    async def is_held() -> bool:
        return sum(live.info.slots_used for live in await producer.workers() if live.info.role == "branch") == 2

    await eventually(is_held)
    assert (await second.report()).branches[0].text == ""
    assert await first.cancel()
    await until(second, BranchText)
    ends = [event async for event in first.events()]
    assert ends[-1].type == "run_done"
    assert await second.cancel()


@pytest.mark.parametrize(("prefill_s", "branch_s"), [(-120, 120), (120, -120)])
async def test_workers_whose_clocks_are_four_minutes_apart_work_together_without_delay(
    prefill_s: int, branch_s: int, fleet: FaultyFleet, producer: Producer
) -> None:
    for role, clock_s in (("prefill", prefill_s), ("branch", branch_s)):
        fleet.start_faulty(role, "null", {"clock_s": clock_s}, null_engine=True)
    await fleet.ready(producer, 2)
    report = await (await producer.submit(DOCUMENT, ["What?"] * 20, sampling=SHORT)).results(10)
    assert (report.state, report.prefills_run) == ("done", 1)
    assert 0 <= report.wall_ms < 10_000
    for branch in report.branches:
        assert branch.attempts == 1
        assert all(0 <= ms < 10_000 for ms in branch.timings_ms.model_dump().values())
