"""Many at once: workers that die together, prefills that race, branches that compete for cells, a store for one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchDone, BranchText, PrefillProgress
from swarmkv.protocol.settings import MIB, Settings
from tests.fault_support import FaultyFleet, check_each_ended_once, heard_of, store_files, until
from tests.processes import environment_of
from tests.rounds import by_round

DOCUMENT = "The retry limit is four.\n" * 20
LONG_DOCUMENT = "The retry limit is four.\n" * 120
SLOW = {"decode_s": 0.05}
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
MEDIUM = Sampling(temperature=0, max_tokens=60, ignore_eos=True)

_SUBMIT = """
import asyncio, sys
from swarmkv.producer import Producer, Sampling
async def submit():
    async with Producer() as producer:
        sampling = Sampling(temperature=0, max_tokens=int(sys.argv[2]), ignore_eos=True)
        run = await producer.submit(sys.argv[1], ["What?", "Why?"], sampling=sampling)
        print(run.id, flush=True)
        await run.results()
asyncio.run(submit())
"""


def start_producer(settings: Settings, directory: Path, document: str, max_tokens: int) -> subprocess.Popen[str]:
    """A producer in a process of its own: it prints its run's id, and waits for the results."""
    return subprocess.Popen(
        [sys.executable, "-c", _SUBMIT, document, str(max_tokens)],
        env=environment_of(settings),
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
    )


# -- all die


async def test_when_every_worker_is_killed_new_ones_finish_both_prefill_and_branches(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    victims = [fleet.start_faulty(role, tiny_llama_path, SLOW) for role in ("prefill", "branch")]
    await fleet.beats(producer, *victims)
    decoding = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(8)], sampling=MEDIUM)
    await until(decoding, BranchText, 8)
    prefilling = await producer.submit(LONG_DOCUMENT, ["What?"], sampling=SHORT)
    await until(prefilling, PrefillProgress)
    for victim in victims:
        victim.send(signal.SIGKILL)
    for role in ("prefill", "branch"):
        fleet.start(role, tiny_llama_path)
    for run, attempts in ((decoding, 2), (prefilling, 1)):
        heard, report = await heard_of(run), await run.report()
        assert (report.state, report.prefills_run) == ("done", 1)
        assert {branch.attempts for branch in report.branches} == {attempts}
        check_each_ended_once(heard, report)
    snapshots, temporary = store_files(settings)
    assert (len(snapshots), temporary) == (2, [])


async def test_workers_killed_over_and_over_lose_and_double_no_result(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    await fleet.beats(producer, fleet.start("prefill", tiny_llama_path))
    victim = fleet.start_faulty("branch", tiny_llama_path, SLOW)
    await fleet.beats(producer, victim)
    for _ in range(by_round(1, 20)):
        run = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(8)], sampling=MEDIUM)
        await until(run, BranchText, 8)
        successor = fleet.start_faulty("branch", tiny_llama_path, SLOW)
        victim.kill()
        heard, report = await heard_of(run), await run.report()
        assert report.state == "done"
        assert {branch.attempts for branch in report.branches} == {2}
        check_each_ended_once(heard, report)
        victim = successor


async def test_a_run_whose_producer_was_killed_ends_all_the_same(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tmp_path: Path, tiny_llama_path: Path
) -> None:
    await fleet.beats(producer, fleet.start_faulty("all", tiny_llama_path, SLOW))
    client = start_producer(settings, tmp_path, DOCUMENT, 30)
    assert client.stdout is not None
    with client.stdout:
        run = producer.run(client.stdout.readline().strip())
        await until(run, BranchText)
        client.kill()
        client.wait()
    heard = await heard_of(run)
    check_each_ended_once(heard, await run.report())


# -- one prefill


async def test_two_prefill_workers_never_prefill_one_document_twice(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    for role in ("prefill", "prefill", "branch"):
        fleet.start(role, tiny_llama_path)
    await fleet.ready(producer, 3)
    rounds = by_round(10, 50)
    for number in range(rounds):
        document = f"{DOCUMENT}{number}"
        runs = await asyncio.gather(*(producer.submit(document, ["What?"], sampling=SHORT) for _ in range(4)))
        reports = await asyncio.gather(*(run.results(30) for run in runs))
        assert [report.state for report in reports] == ["done"] * 4
        assert sum(report.prefills_run for report in reports) == 1
        assert len({report.branches[0].text for report in reports}) == 1
    prefills = [worker.log.count("Prefilled") for worker in fleet.processes[:2]]
    assert sum(prefills) == rounds
    assert len(store_files(settings)[0]) == rounds


async def test_four_producers_at_once_share_one_prefill(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tmp_path: Path, tiny_llama_path: Path
) -> None:
    prefills = [fleet.start_faulty("prefill", tiny_llama_path, SLOW) for _ in range(2)]
    await fleet.beats(producer, *prefills, fleet.start("branch", tiny_llama_path))
    clients = [start_producer(settings, tmp_path, DOCUMENT, 6) for _ in range(4)]
    ids = [client.communicate(timeout=60)[0].strip() for client in clients]
    assert [client.returncode for client in clients] == [0] * 4
    reports = [await producer.run(run).report() for run in ids]
    assert {report.state for report in reports} == {"done"}
    assert sum(report.prefills_run for report in reports) == 1
    assert len({branch.text for report in reports for branch in report.branches}) == 2


# -- cells


async def test_a_runaway_among_seven_short_ones_is_cut_and_they_are_done_long_before_it(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    await fleet.beats(producer, fleet.start_faulty("all", tiny_llama_path, {"decode_s": 0.002}))
    endless = {"name": "runaway", "prompt": "Go on.", "sampling": SHORT.model_copy(update={"max_tokens": 300})}
    run = await producer.submit(DOCUMENT, [endless, *(f"Question {n}?" for n in range(7))], sampling=SHORT)
    heard, report = await heard_of(run), await run.report()
    check_each_ended_once(heard, report)
    assert [event.branch for event in heard.events if isinstance(event, BranchDone)][-1] == "runaway"
    runaway = report["runaway"]
    assert (runaway.finish_reason, runaway.tokens.generated) == ("length", 300)
    assert {branch.attempts for branch in report.branches} == {1}


async def test_four_branches_that_each_need_two_fifths_of_the_cells_take_turns_and_finish(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    n_ctx = 1024
    large = Sampling(temperature=0, max_tokens=int(n_ctx * 0.4), ignore_eos=True)
    await fleet.beats(producer, fleet.start("all", tiny_llama_path, "default", n_ctx=n_ctx))
    run = await producer.submit("A short document.", [f"Question {n}?" for n in range(4)], sampling=large)
    heard, report = await heard_of(run), await run.report()
    check_each_ended_once(heard, report)
    assert report.state == "done"
    assert [branch.tokens.generated for branch in report.branches] == [large.max_tokens] * 4


# -- a store of one


async def test_three_documents_in_a_store_of_one_take_turns_and_end(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    for role in ("prefill", "prefill", "branch"):
        fleet.start(role, tiny_llama_path, "default", store_budget_bytes=MIB)
    await fleet.ready(producer, 3)
    documents = [letter * 2500 for letter in "xyz"]
    runs = [await producer.submit(item, ["What?", "Why?"], sampling=MEDIUM) for item in documents * 2]
    reports = [await run.results(90) for run in runs]
    assert {report.state for report in reports} == {"done"}
    assert max(branch.attempts for report in reports for branch in report.branches) <= 1 + settings.max_rebuilds
    texts = [tuple(branch.text for branch in report.branches) for report in reports]
    assert texts[:3] == texts[3:]
    assert len(set(texts)) == 3
    assert len(store_files(settings)[0]) == 1
