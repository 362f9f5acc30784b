"""What workers do when they are told: real processes, the null engine and tiny models."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, RunHandle, Sampling
from swarmkv.protocol.commands import Command
from swarmkv.protocol.errors import CommandUnanswered
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.messages import RunReport
from swarmkv.protocol.settings import Settings
from swarmkv.snapshots import SnapshotStore
from tests.fault_support import FaultyFleet, check_each_ended_once, faulty_fleet, heard_of
from tests.processes import WorkerProcess
from tests.waiting import eventually

DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=4, ignore_eos=True)
NULL: dict[str, Any] = {"null_engine": True}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[FaultyFleet]:
    with faulty_fleet(settings, tmp_path / "logs") as fleet:
        yield fleet


async def id_of(producer: Producer, worker: WorkerProcess, role: str = "") -> str:
    """The id under which a worker process beats."""
    return next(
        live.info.id
        for live in await producer.workers()
        if live.info.pid == worker.pid and live.info.role.startswith(role)
    )


async def state_of(producer: Producer, worker_id: str) -> str:
    return next((live.info.state for live in await producer.workers() if live.info.id == worker_id), "gone")


async def is_running(run: RunHandle) -> bool:
    return all(branch.state == "running" for branch in (await run.report()).branches)


async def done(producer: Producer, document: str = DOCUMENT, **options: Any) -> RunReport:
    report = await (await producer.submit(document, ["What?"], sampling=SHORT, **options)).results(30)
    assert report.state == "done"
    return report


async def test_a_paused_worker_takes_nothing_ends_what_it_has_beats_on_and_resumes(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    prefill = fleet.start("prefill", "null", **NULL)
    branch = fleet.start_faulty("branch", "null", {"null_s": 1.0}, **NULL)
    await fleet.beats(producer, prefill, branch)
    worker = await id_of(producer, branch)
    held = await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=SHORT)
    await eventually(lambda: is_running(held))
    paused = await ledger.commands.send(worker, Command(kind="pause", by="a test"))
    assert (paused.ok, paused.message) == (True, f"Worker {worker} is paused; it goes on with 2 jobs.")
    assert await state_of(producer, worker) == "paused"
    waiting = await producer.submit(DOCUMENT, ["Where?"], sampling=SHORT)
    assert [warning.message for warning in waiting.warnings] == [
        "Every branch worker for model 'default' is paused; the run waits for one."
    ]
    assert (await held.results(20)).state == "done"
    again = await ledger.commands.send(worker, Command(kind="pause"))
    assert (again.ok, "was paused already" in again.message) == (True, True)
    assert await ledger.fleet.queue_depth("branch", "default") == 1
    assert [branch.state for branch in (await waiting.report()).branches] == ["queued"]
    resumed = await ledger.commands.send(worker, Command(kind="resume"))
    assert resumed.message == f"Worker {worker} takes jobs again."
    assert (await waiting.results(20)).state == "done"
    assert await state_of(producer, worker) == "running"
    records = await ledger.commands.history()
    assert [record.command.kind for record in records] == ["resume", "pause", "pause"]
    assert records[-1].command.by == "a test"


async def test_a_paused_worker_that_dies_comes_back_and_works(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    both = fleet.start("all", "null", **NULL)
    await fleet.ready(producer, 2)
    assert (await ledger.commands.send("branch", Command(kind="pause"))).ok
    both.kill()
    fleet.start("all", "null", **NULL)
    await done(producer)


async def test_a_drained_worker_ends_with_zero_and_loses_nothing(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    prefill = fleet.start("prefill", "null", **NULL)
    leaving = fleet.start_faulty("branch", "null", {"null_s": 600}, **NULL)
    await fleet.beats(producer, prefill, leaving)
    worker = await id_of(producer, leaving)
    run = await producer.submit(DOCUMENT, ["What?", "Why?", "Where?"], sampling=SHORT)
    await eventually(lambda: is_running(run))
    answer = await ledger.commands.send(worker, Command(kind="drain", grace_s=1.0))
    assert (answer.ok, answer.message) == (
        True,
        f"Worker {worker} drains: 3 jobs may take 1 s, then its process ends.",
    )

    async def is_draining() -> bool:
        return await state_of(producer, worker) == "draining"

    await eventually(is_draining)
    refused = await ledger.commands.send(worker, Command(kind="resume"))
    assert (refused.ok, refused.code) == (False, "command_refused")
    assert leaving.process.wait(timeout=30) == 0, leaving.log
    assert await state_of(producer, worker) == "gone"
    fleet.start("branch", "null", **NULL)
    heard = await heard_of(run)
    report = await run.report()
    assert (report.state, {branch.attempts for branch in report.branches}) == ("done", {2})
    check_each_ended_once(heard, report)


async def test_draining_one_role_of_a_process_ends_both(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    both = fleet.start("all", "null", **NULL)
    await fleet.ready(producer, 2)
    assert (await ledger.commands.send(await id_of(producer, both, "prefill"), Command(kind="drain"))).ok
    assert both.process.wait(timeout=20) == 0, both.log
    assert await producer.workers() == []


async def test_a_command_that_no_bell_announced_is_found_with_the_next_heartbeat(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = fleet.start("branch", "null", **NULL)
    await fleet.ready(producer, 1)
    source = ledger.commands._scripts
    run, told = source.run, []

    async def quietly(name: str, /, **arguments: Any) -> Any:
        """As if the bell were lost: the worker's id is another's while the command is written."""
        if name != "command":
            return await run(name, **arguments)
        told.append(name)
        client: Any = ledger.commands._redis
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        return await run(name, **arguments)

    monkeypatch.setattr(source, "run", quietly)
    assert (await ledger.commands.send(await id_of(producer, branch), Command(kind="pause"))).ok
    assert told == ["command"]


async def test_a_stopped_worker_is_said_not_to_have_done_it_and_does_not_do_it_later(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    both = fleet.start("all", "null", **NULL)
    await fleet.ready(producer, 2)
    worker = await id_of(producer, both, "branch")
    both.send(signal.SIGSTOP)
    try:
        with pytest.raises(CommandUnanswered, match="nothing was done"):
            await ledger.commands.send(worker, Command(kind="drain"), timeout_s=0.3)
    finally:
        both.send(signal.SIGCONT)
    await done(producer)
    assert both.process.poll() is None


async def test_a_pinned_snapshot_outlives_eviction_and_an_unpinned_one_does_not(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger, settings: Settings
) -> None:
    small = 3 * (12 * 1024)  # of the null engine: a header, tokens and payload, a page each
    fleet.start("all", "null", **NULL, store_budget_bytes=1 << 20)
    await fleet.ready(producer, 2)
    first = (await done(producer)).snapshot
    assert first is not None
    store = SnapshotStore(settings.store_dir, 1 << 20)
    pinned = await ledger.commands.send("store", Command(kind="pin", snapshot=first))
    assert (pinned.ok, pinned.message) == (True, f"Snapshot {first} is pinned.")
    assert store.pinned() == {first}
    await _fill(producer, store, small)
    assert store.holds(first)
    assert len(store.ls()) > 1
    again = await done(producer)
    assert (again.prefills_run, again.snapshot) == (0, first)
    assert (await ledger.commands.send("store", Command(kind="unpin", snapshot=first))).ok
    await _fill(producer, store, small, salt="more")
    assert not store.holds(first)
    missing = await ledger.commands.send("store", Command(kind="pin", snapshot=first))
    assert (missing.ok, missing.code) == (False, "snapshot_missing")


async def _fill(producer: Producer, store: SnapshotStore, size_bytes: int, salt: str = "") -> None:
    """Documents until some had to go."""
    seen: set[str] = set()
    for number in range(200):
        report = await done(producer, f"{salt}{number} " + "x" * 4000)
        seen.add(report.snapshot or "")
        if seen - {entry.key for entry in store.ls()}:
            return
    raise AssertionError(f"nothing was evicted by {len(seen)} snapshots of some {size_bytes} bytes")


async def test_a_dropped_snapshot_is_gone_from_store_and_ledger_and_is_prefilled_again(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger, settings: Settings, tiny_llama_path: Path
) -> None:
    fleet.start("all", tiny_llama_path)
    await fleet.ready(producer, 2)
    key = (await done(producer)).snapshot
    assert key is not None
    assert (await done(producer)).prefills_run == 0
    dropped = await ledger.commands.send("store", Command(kind="drop", snapshot=key))
    assert dropped.ok, dropped.message
    store = SnapshotStore(settings.store_dir, settings.store_budget_bytes)
    assert store.ls() == []
    again = await done(producer)
    assert (again.prefills_run, again.snapshot) == (1, key)
    assert [branch.attempts for branch in again.branches] == [1]


async def test_a_snapshot_that_live_branches_need_is_dropped_by_force_alone(
    fleet: FaultyFleet, producer: Producer, ledger: Ledger
) -> None:
    paused = fleet.start("all", "null", **NULL)
    await fleet.ready(producer, 2)
    key = (await done(producer)).snapshot or ""
    assert (await ledger.commands.send("branch", Command(kind="pause"))).ok
    waiting = await producer.submit(DOCUMENT, ["Why?"], sampling=SHORT)
    refused = await ledger.commands.send("store", Command(kind="drop", snapshot=key))
    assert (refused.ok, refused.code) == (False, "command_refused")
    assert "Runs that have not ended need snapshot" in refused.message
    forced = await ledger.commands.send("store", Command(kind="drop", snapshot=key, force=True))
    assert forced.ok, forced.message
    paused.kill()  # it has the snapshot mapped, and would go on with it
    fleet.start("all", "null", **NULL)
    report = await waiting.results(20)
    assert (report.state, report.prefills_run, report.branches[0].attempts) == ("done", 1, 2)
