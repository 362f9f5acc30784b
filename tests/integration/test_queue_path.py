"""The whole path with real processes: producer, broker, prefill worker, snapshot, branch worker, results."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchDone, BranchStarted, BranchText, PrefillDone, PrefillProgress, RunDone
from swarmkv.protocol.settings import Settings
from tests.processes import Fleet

EVERY_BROKER = True
DOCUMENT = "The retry limit is four.\n" * 20
GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(params=["two processes", "one process"])
async def workers(request: pytest.FixtureRequest, fleet: Fleet, producer: Producer, tiny_llama_path: Path) -> Fleet:
    roles = ["prefill", "branch"] if request.param == "two processes" else ["all"]
    for role in roles:
        fleet.start(role, tiny_llama_path)
    await fleet.ready(producer, 2)
    return fleet


async def test_eight_branches_over_one_document_cost_one_prefill_and_then_none(
    workers: Fleet, producer: Producer
) -> None:
    prompts = [f"Question {number}?" for number in range(8)]
    first = await (await producer.submit(DOCUMENT, prompts, sampling=GREEDY)).results(20)
    assert first.state == "done", workers.processes[-1].log
    assert first.prefills_run == 1
    assert [b.name for b in first.branches] == [f"branch-{n}" for n in range(1, 9)]
    for branch in first.branches:
        assert branch.tokens.reused == first.document_tokens
        assert (branch.tokens.recomputed, branch.tokens.generated) == (0, 12)
    second = await (await producer.submit(DOCUMENT, prompts, sampling=GREEDY)).results(20)
    assert (second.state, second.prefills_run, second.prefill_ms) == ("done", 0, 0)
    assert second.prefill_saved_ms > 0


async def test_events_tell_the_run_in_order_and_the_text_joins_to_the_result(
    workers: Fleet, producer: Producer
) -> None:
    run = await producer.submit(DOCUMENT, [("one", "What?"), ("two", "Why?")], sampling=GREEDY)
    events = [event async for event in run.events()]
    kinds = [type(event) for event in events]
    assert kinds.index(PrefillDone) < kinds.index(BranchStarted) < kinds.index(BranchDone)
    assert PrefillProgress in kinds
    assert kinds[-1] is RunDone
    report = await run.report()
    for branch in report.branches:
        pieces = [e for e in events if isinstance(e, BranchText) and e.branch == branch.name]
        text = ""
        for piece in pieces:
            assert piece.offset == len(text)
            text += piece.text
        assert text == branch.text


async def test_a_run_is_followed_from_another_process_by_its_id(
    workers: Fleet, producer: Producer, settings: Settings
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"], sampling=GREEDY)
    async with Producer(settings=settings) as other:
        assert (await other.run(run.id).results(20)).state == "done"
        assert [summary.run_id for summary in await other.runs()] == [run.id]


async def test_a_branch_that_does_not_fit_fails_alone_with_the_numbers(
    workers: Fleet, producer: Producer, settings: Settings
) -> None:
    huge = Sampling(temperature=0, max_tokens=100_000)
    run = await producer.submit(
        DOCUMENT,
        [{"name": "huge", "prompt": "All of it?", "sampling": huge}, ("small", "What?")],
        sampling=GREEDY,
    )
    report = await run.results(20)
    assert report.state == "completed_with_errors"
    assert report["small"].state == "done"
    error = report["huge"].error
    assert error is not None
    assert error.code == "branch_too_long"
    assert "100000" in error.message
    assert str(settings.n_ctx) in error.message


async def test_a_document_that_does_not_fit_fails_the_run_before_any_decode(
    workers: Fleet, producer: Producer, settings: Settings
) -> None:
    run = await producer.submit("x" * (settings.n_ctx * 2), ["What?"], sampling=GREEDY)
    report = await run.results(20)
    assert report.state == "failed"
    assert report.prefills_run == 0
    assert report.error is not None
    assert report.error.code == "prefix_too_long"
    assert f"{settings.n_ctx:,}" in report.error.message
    again = await (await producer.submit(DOCUMENT, ["What?"], sampling=GREEDY)).results(20)
    assert again.state == "done"


async def test_cancelling_a_run_ends_it_at_once_and_frees_its_slots(workers: Fleet, producer: Producer) -> None:
    endless = Sampling(temperature=0, max_tokens=3000, ignore_eos=True)
    run = await producer.submit(DOCUMENT, ["Go on."], sampling=endless)
    async for event in run.events():
        if isinstance(event, BranchText):
            break
    assert await run.cancel()
    report = await run.results(10)
    assert report.state == "cancelled"
    assert report.branches[0].finish_reason == "cancelled"
    after = await (await producer.submit(DOCUMENT, ["And now?"], sampling=GREEDY)).results(20)
    assert after.state == "done"


async def test_texts_that_cannot_fit_are_refused_without_being_tokenised(
    workers: Fleet, producer: Producer, settings: Settings
) -> None:
    endless = "x" * 1_000_000  # this vocabulary takes minutes to tokenise it
    run = await producer.submit(DOCUMENT, [("long", endless), ("short", "What?")], sampling=GREEDY)
    report = await run.results(20)
    assert report["short"].state == "done"
    assert report["long"].error is not None
    assert report["long"].error.code == "branch_too_long"
    assert f"the context holds {settings.n_ctx:,}" in report["long"].error.message
    whole = await (await producer.submit(endless, ["What?"], sampling=GREEDY)).results(20)
    assert whole.error is not None
    assert whole.error.code == "prefix_too_long"
