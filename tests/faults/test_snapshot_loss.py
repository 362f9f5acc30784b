"""Snapshots that vanish, rot, are swapped, do not fit or are of another kind: no branch decodes a wrong one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchText, PrefillDone, PrefillProgress
from swarmkv.protocol.settings import MIB, Settings
from swarmkv.workers.engine import null
from swarmkv.workers.engine.jobs import BranchEnded, BranchJob, PrefillJob
from tests.fault_support import FaultyFleet, heard_of, store_files, until
from tests.waiting import wait_until

DOCUMENT = "The retry limit is four.\n" * 20
OTHER_DOCUMENT = "The retry limit is nine.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=150, ignore_eos=True)


def null_answer(document: str, prompt: str, sampling: Sampling = SHORT) -> str:
    """What the null engine says of a document and a prompt, and of no others."""
    state = bytearray(null.STATE_BYTES)
    null._prefilled(PrefillJob("", null._bytes_as_tokens(document), lambda _: memoryview(state)))
    tokens = null._bytes_as_tokens(prompt)
    *_, ended = null._answered(BranchJob("", "", memoryview(state), len(document), tokens, sampling))
    assert isinstance(ended, BranchEnded)
    return ended.text


# -- between registration and restore


def delete(path: Path, _: bytes) -> None:
    path.unlink()


def flip_in_payload(path: Path, _: bytes) -> None:
    flip(path, -1)


def flip_in_tokens(path: Path, _: bytes) -> None:
    flip(path, path.stat().st_size // 2)


def flip_in_header(path: Path, _: bytes) -> None:
    flip(path, 20)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def truncate(path: Path, _: bytes) -> None:
    os.truncate(path, path.stat().st_size * 3 // 4)


def empty(path: Path, _: bytes) -> None:
    path.write_bytes(b"")


def swap(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def make_directory(path: Path, _: bytes) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [delete, flip_in_payload, flip_in_tokens, flip_in_header, truncate, empty, swap]


async def test_a_snapshot_lost_before_it_is_restored_is_built_again(
    fleet: FaultyFleet, producer: Producer, settings: Settings
) -> None:
    prefill = fleet.start("prefill", "null", null_engine=True)
    await fleet.beats(producer, prefill)
    other = await producer.submit(OTHER_DOCUMENT, ["What?"], sampling=SHORT)
    await until(other, PrefillDone)
    (other_name,), _ = store_files(settings)
    other_file = (settings.store_dir / other_name).read_bytes()
    runs = []
    for number, damage in enumerate(DAMAGES):
        run = await producer.submit(f"{DOCUMENT}{number}", ["What?", "Why?"], sampling=SHORT)
        await until(run, PrefillDone)
        snapshot = (await run.report()).snapshot
        damage(settings.store_dir / f"{snapshot}.kv", other_file)
        runs.append(run)
    fleet.start("branch", "null", null_engine=True)
    for number, run in enumerate(runs):
        report = await run.results(30)
        assert (report.state, report.prefills_run) == ("done", 2), DAMAGES[number]
        texts = [branch.text for branch in report.branches]
        assert texts == [null_answer(f"{DOCUMENT}{number}", prompt) for prompt in ("What?", "Why?")]
    report = await other.results(30)
    assert report.branches[0].text == null_answer(OTHER_DOCUMENT, "What?")
    assert report.prefills_run == 1


async def test_a_snapshot_that_cannot_be_replaced_fails_its_run_with_the_reason(
    fleet: FaultyFleet, producer: Producer, settings: Settings
) -> None:
    await fleet.beats(producer, fleet.start("prefill", "null", null_engine=True))
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    await until(run, PrefillDone)
    make_directory(settings.store_dir / f"{(await run.report()).snapshot}.kv", b"")
    branch = fleet.start("branch", "null", null_engine=True)
    report = await run.results(30)
    assert report.state == "failed"
    assert report.error is not None
    assert "could not be published" in report.error.message
    good = await (await producer.submit(OTHER_DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert good.branches[0].text == null_answer(OTHER_DOCUMENT, "What?")
    assert branch.process.poll() is None


# -- refused by the engine, or made otherwise


async def test_a_snapshot_that_the_engine_refuses_is_built_again_three_times_and_no_more(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    branch = fleet.start_faulty("branch", tiny_llama_path, {"corrupt": 4 + 3})
    await fleet.beats(producer, prefill, branch)

    async def answer() -> tuple[str, int, int, str | None]:
        report = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(60)
        (only,) = report.branches
        return report.state, report.prefills_run, only.attempts, only.error.code if only.error else None

    assert await answer() == ("failed", 4, 4, "snapshot_corrupt")
    assert await answer() == ("done", 4, 4, None)
    assert await answer() == ("done", 0, 1, None)


async def test_a_snapshot_made_with_other_settings_is_refused_by_the_names_of_the_settings(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    bad = fleet.start("prefill", tiny_llama_path, kv_type_k="bf16", flash_attention="on")
    branch = fleet.start("branch", tiny_llama_path)
    await fleet.beats(producer, bad, branch)
    report = await (await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=SHORT)).results(30)
    assert report.state == "failed"
    for refused in report.branches:
        assert (refused.text, refused.attempts) == ("", 4)
        assert refused.error is not None
        assert refused.error.code == "snapshot_mismatch"
        assert "kv_type_k is 'bf16' in the snapshot, 'f16' here" in refused.error.message
        assert "flash_attention is True in the snapshot, False here" in refused.error.message
    assert bad.end() == 0
    await fleet.beats(producer, fleet.start("prefill", tiny_llama_path))
    texts = []
    for document in (DOCUMENT, OTHER_DOCUMENT, DOCUMENT):
        good = await (await producer.submit(document, ["What?"], sampling=LONG)).results(30)
        assert good.state == "done"
        texts.append(good.branches[0].text)
    assert texts[0] == texts[2] != texts[1]
    assert branch.process.poll() is None


async def test_documents_of_equal_tokens_and_different_parts_do_not_push_each_other_out(
    fleet: FaultyFleet, producer: Producer
) -> None:
    for role in ("prefill", "prefill", "branch"):
        fleet.start_faulty(role, "null", {"null_s": 0.01}, null_engine=True, slots=2)
    await fleet.ready(producer, 3)
    prompts = [f"Question {n}?" for n in range(10)]
    runs = [
        await producer.submit(DOCUMENT[cut:], prompts, system=DOCUMENT[:cut], sampling=SHORT) for cut in (3, 7, 11)
    ]
    for report in await asyncio.gather(*(run.results(60) for run in runs)):
        assert report.state == "done"
        assert [branch.text for branch in report.branches] == [null_answer(DOCUMENT, prompt) for prompt in prompts]


# -- room


async def test_a_snapshot_that_can_never_fit_fails_its_run_with_the_numbers(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    small = {"store_budget_bytes": MIB, "n_ctx": 8192}
    workers = [fleet.start(role, tiny_llama_path, "default", **small) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    report = await (await producer.submit("x" * 6000, ["What?"], sampling=SHORT)).results(30)
    assert (report.state, report.prefills_run) == ("failed", 0)
    assert report.error is not None
    assert report.error.code == "snapshot_too_large"
    assert "1.0 MiB" in report.error.message
    assert "SWARMKV_STORE_BUDGET_BYTES" in report.error.hint
    good = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert good.state == "done"


async def test_a_prefill_without_room_waits_until_the_other_run_has_ended(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path, store_budget_bytes=MIB)
    branch = fleet.start_faulty("branch", tiny_llama_path, {"decode_s": 0.04})
    await fleet.beats(producer, prefill, branch)
    first = await producer.submit("x" * 2500, ["What?"], sampling=LONG)
    await until(first, BranchText)
    second = await producer.submit("y" * 2500, ["What?"], sampling=SHORT)
    wait_until(lambda: prefill.log.count("waits for room") >= 2, timeout_s=30)
    assert not (await first.report()).is_finished
    assert (await first.results(60)).state == "done"
    heard = await heard_of(second)
    report = await second.report()
    assert (report.state, report.prefills_run, report.branches[0].attempts) == ("done", 1, 1)
    progress = [e.done_tokens for e in heard.events if isinstance(e, PrefillProgress)]
    assert progress.count(max(progress)) == 2, "it was decoded again although there was no room for it"


async def test_a_snapshot_that_another_worker_made_meanwhile_is_not_evicted_while_it_is_waited_for(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    slow = fleet.start_faulty("prefill", tiny_llama_path, {"decode_s": 0.15}, store_budget_bytes=MIB)
    await fleet.beats(producer, slow)
    late = await producer.submit("x" * 2500, ["What?"], sampling=SHORT)
    await until(late, PrefillProgress)
    await fleet.beats(producer, fleet.start("prefill", tiny_llama_path, store_budget_bytes=MIB))
    early = await producer.submit("y" * 2500, ["What?"], sampling=SHORT)
    await until(early, PrefillDone)
    wait_until(lambda: "waits for room" in slow.log, timeout_s=30)
    fleet.start("branch", tiny_llama_path)
    for run in (early, late):
        report = await run.results(30)
        assert (report.state, report.prefills_run, report.branches[0].attempts) == ("done", 1, 1)


async def test_six_documents_in_a_store_for_three_are_each_answered_from_their_own(
    fleet: FaultyFleet, producer: Producer, settings: Settings
) -> None:
    large = {"store_budget_bytes": MIB, "n_ctx": 131_072}
    for role in ("prefill", "prefill", "branch", "branch"):
        fleet.start(role, "null", "default", null_engine=True, **large)
    await fleet.ready(producer, 4)
    documents = [f"The needle is {n}. " + f"{n}" * 75_000 for n in range(6)]
    turn = asyncio.Semaphore(4)

    async def ask(number: int, round_number: int) -> None:
        async with turn:
            prompts = [f"Needle? {round_number}", f"Again? {round_number}"]
            report = await (await producer.submit(documents[number], prompts, sampling=SHORT)).results(60)
            assert report.state == "done", report
            texts = [branch.text for branch in report.branches]
            assert texts == [null_answer(documents[number], prompt) for prompt in prompts]

    await asyncio.gather(*(ask(number, round_number) for round_number in range(5) for number in range(6)))
    snapshots, temporary = store_files(settings)
    assert len(snapshots) <= 3
    assert temporary == []
