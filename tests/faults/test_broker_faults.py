"""A broker that restarts, dies, fills up, is emptied, or holds what others wrote: nothing that it kept is lost."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.codec import pack
from swarmkv.protocol.errors import BrokerError, RunNotFinished
from swarmkv.protocol.events import BranchStarted, BranchText, PrefillProgress
from swarmkv.protocol.ledger.runs import RunLedger
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.settings import Settings
from swarmkv.workers import doorbell
from swarmkv.workers.tasks import end_all
from tests.conftest import quick_settings
from tests.fault_support import FaultyFleet, PrivateBroker, faulty_fleet, heard_of, private_broker, until
from tests.processes import WorkerProcess
from tests.waiting import eventually, wait_until

DOCUMENT = "The retry limit is four.\n" * 20
LONG_DOCUMENT = "The retry limit is four.\n" * 120
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=120, ignore_eos=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    with private_broker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def private(broker: PrivateBroker, tmp_path: Path) -> Settings:
    """Settings on a broker of this test alone."""
    return quick_settings(broker.url, tmp_path / "store")


@pytest.fixture
def fleet(private: Settings, tmp_path: Path) -> Iterator[FaultyFleet]:
    with faulty_fleet(private, tmp_path / "logs") as fleet:
        yield fleet


@pytest.fixture
async def producer(private: Settings) -> AsyncIterator[Producer]:
    async with Producer(settings=private) as producer:
        yield producer


@pytest.fixture
async def raw(private: Settings) -> AsyncIterator[Any]:
    """A client of the test's broker, to do what nobody should."""
    client = connect(private.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


async def start_null(fleet: FaultyFleet, producer: Producer) -> list[WorkerProcess]:
    workers = [fleet.start(role, "null", null_engine=True) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    return workers


async def check_all_is_well(producer: Producer, workers: list[WorkerProcess], document: str) -> None:
    """The same processes serve a new run."""
    report = await (await producer.submit(document, ["What?", "Why?"], sampling=SHORT)).results(30)
    assert report.state == "done"
    for worker in workers:
        assert worker.process.poll() is None, worker.log


async def keys_of_work(raw: Any) -> set[bytes]:
    """What Redis holds of runs, documents and jobs: workers' beats and statistics come and go beside it."""
    patterns = (
        "swarmkv:run:*",
        "swarmkv:runs",
        "swarmkv:document*",
        "swarmkv:prefix:*",
        "swarmkv:queue:*",
        "arq:*",
    )
    return {name for pattern in patterns for name in await raw.keys(pattern)}


# -- away


async def test_a_broker_killed_while_idle_in_prefill_and_in_decode_costs_neither_workers_nor_work(
    broker: PrivateBroker, fleet: FaultyFleet, producer: Producer, private: Settings, tiny_llama_path: Path
) -> None:
    workers = [fleet.start_faulty(role, tiny_llama_path, {"decode_s": 0.05}) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)

    async def restart() -> None:
        await asyncio.to_thread(broker.stop, signal.SIGKILL)
        # Longer than a lease: what runs may have been nobody's meanwhile.
        await asyncio.sleep(private.lease_s * 1.2)
        await asyncio.to_thread(broker.start)

    await restart()
    run = await producer.submit(LONG_DOCUMENT, [f"Question {n}?" for n in range(4)], sampling=LONG)
    following = asyncio.create_task(heard_of(run))
    await until(run, PrefillProgress)
    await restart()
    await until(run, BranchText, 4)
    await restart()
    heard, report = await following, await run.report()
    assert (report.state, report.prefills_run) == ("done", 1)
    for branch in report.branches:
        assert branch.attempts == 1
        assert heard.text(branch.name) == branch.text
    assert heard.ends == {branch.name: 1 for branch in report.branches}
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert [worker.log.count("Loaded") for worker in workers] == [1, 1]
    for worker in workers:
        assert 1 <= worker.log.count(" for Redis: ") <= 3 * 3


async def test_a_broker_killed_after_it_accepted_runs_still_has_them(
    broker: PrivateBroker, fleet: FaultyFleet, producer: Producer
) -> None:
    runs = [
        await producer.submit(f"{DOCUMENT}{n}", ["What?", "Why?"], sampling=SHORT, any_model=True)
        for n in range(20)
    ]
    await asyncio.to_thread(broker.stop, signal.SIGKILL)
    await asyncio.to_thread(broker.start)
    await start_null(fleet, producer)
    reports = await asyncio.wait_for(asyncio.gather(*(run.results() for run in runs)), 60)
    assert {report.state for report in reports} == {"done"}


async def test_a_worker_that_starts_before_its_broker_waits_and_then_serves(
    broker: PrivateBroker, fleet: FaultyFleet, producer: Producer
) -> None:
    broker.stop()
    workers = [fleet.start(role, "null", null_engine=True) for role in ("prefill", "branch")]
    for worker in workers:
        wait_until(lambda worker=worker: "waiting for Redis" in worker.log, timeout_s=30)  # type: ignore[misc]
    broker.start()
    await fleet.beats(producer, *workers)
    await check_all_is_well(producer, workers, DOCUMENT)


async def test_hundreds_of_followers_share_few_connections(fleet: FaultyFleet, producer: Producer) -> None:
    runs = [await producer.submit(DOCUMENT, ["What?"], sampling=SHORT, any_model=True) for _ in range(200)]
    following = [asyncio.create_task(run.results()) for run in runs]
    await start_null(fleet, producer)
    reports = await asyncio.wait_for(asyncio.gather(*following), 60)
    assert {report.state for report in reports} == {"done"}


async def test_a_broker_that_hangs_costs_at_most_a_second_attempt(
    broker: PrivateBroker, fleet: FaultyFleet, producer: Producer
) -> None:
    impatient: dict[str, Any] = {"null_engine": True, "redis_timeout_s": 0.5}
    workers = [fleet.start_faulty(role, "null", {"null_s": 0.3}, **impatient) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    run = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(12)], sampling=SHORT)
    await until(run, BranchText)
    broker.server.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: all(" for Redis: " in worker.log for worker in workers), timeout_s=30)
    broker.server.process.send_signal(signal.SIGCONT)
    heard, report = await heard_of(run), await run.report()
    assert report.state == "done"
    assert heard.ends == {branch.name: 1 for branch in report.branches}
    assert max(branch.attempts for branch in report.branches) <= 2
    await check_all_is_well(producer, workers, "Another document.")


async def test_a_worker_told_to_stop_while_its_broker_is_away_ends_all_the_same(
    broker: PrivateBroker, fleet: FaultyFleet, producer: Producer
) -> None:
    null: dict[str, Any] = {"null_engine": True, "grace_s": 0.5}
    branch = fleet.start_faulty("branch", "null", {"null_s": 600}, **null)
    await fleet.beats(producer, fleet.start("prefill", "null", **null), branch)
    await until(await producer.submit(DOCUMENT, ["What?"], sampling=SHORT), BranchStarted)
    broker.stop()
    assert branch.end() == 0, branch.log
    assert "their leases will run out" in branch.log


async def test_a_bell_whose_connection_died_without_a_word_is_hung_up_again(
    broker: PrivateBroker, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doorbell, "SILENCE_S", 0.1)
    caplog.set_level(logging.DEBUG, doorbell.logger.name)
    bell = doorbell.Doorbell(raw, "channel", lambda _: None)
    heard, hear = Counter[str](), bell._hear

    def count(message: dict[str, Any]) -> None:
        heard[message["type"]] += 1
        hear(message)

    async def rings() -> bool:
        await raw.publish("channel", "")
        return bell._rung.is_set()

    monkeypatch.setattr(bell, "_hear", count)
    listening = asyncio.create_task(bell.listen())
    await asyncio.to_thread(wait_until, lambda: heard["pong"] >= 3)
    assert "doorbell lost" not in caplog.text
    broker.server.process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(wait_until, lambda: "the connection is dead" in caplog.text)
    broker.server.process.send_signal(signal.SIGCONT)
    await bell.wait(0)
    await eventually(rings)
    await end_all([listening])


async def lose_a_cancellation() -> None:
    """As asyncio.wait_for did before Python 3.12, below every command that redis-py sends."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0.1)


async def test_a_timeout_whose_cancellation_gets_lost_ends_the_waiting_all_the_same(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_done(*_: object) -> bool:
        await lose_a_cancellation()
        return False

    run = await producer.submit(DOCUMENT, ["What?"], any_model=True)
    monkeypatch.setattr(RunLedger, "wait_done", wait_done)
    with pytest.raises(RunNotFinished):
        await run.results(0.05)


async def test_side_tasks_whose_cancellation_gets_lost_are_ended_all_the_same() -> None:
    async def lose_three() -> None:
        for _ in range(3):
            await lose_a_cancellation()
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(lose_three()) for _ in range(3)]
    await asyncio.sleep(0)
    await end_all(tasks)
    assert all(task.done() for task in tasks)


# -- refusing


@pytest.mark.parametrize(("wrong", "words"), [("password", "password"), ("database", "DB index is out of range")])
async def test_a_worker_that_its_broker_refuses_ends_at_once_and_says_why(
    wrong: str, words: str, fleet: FaultyFleet, private: Settings, raw: Any
) -> None:
    url = private.redis_url.replace("db=0", "db=99")
    if wrong == "password":
        await raw.config_set("requirepass", "right")
        url = private.redis_url.replace("unix://", "unix://:wrong@")
    worker = fleet.start("branch", "null", null_engine=True, redis_url=url)
    assert worker.process.wait(timeout=30) == 1
    assert "error: Redis refused" in worker.log
    assert words in worker.log
    assert "Traceback" not in worker.log
    async with Producer(url, private) as producer:
        with pytest.raises(BrokerError, match=words):
            await producer.submit(DOCUMENT, ["What?"])


async def test_a_full_broker_refuses_new_runs_whole_and_lets_accepted_ones_end(
    fleet: FaultyFleet, producer: Producer, raw: Any, tiny_llama_path: Path
) -> None:
    workers = [fleet.start("prefill", tiny_llama_path)]
    workers.append(fleet.start_faulty("branch", tiny_llama_path, {"decode_s": 0.04}))
    await fleet.beats(producer, *workers)
    accepted = await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=LONG)
    await until(accepted, BranchText, 2)
    used = (await raw.info("memory"))["used_memory"]
    await raw.config_set("maxmemory", used // 2)
    before = await keys_of_work(raw)
    for document in (DOCUMENT, "Another document."):
        with pytest.raises(BrokerError, match="out of memory") as caught:
            await producer.submit(document, ["What?"] * 50)
        assert "maxmemory" in caught.value.hint
    assert len(await producer.runs()) == 1
    assert await keys_of_work(raw) == before
    report = await accepted.results(60)
    assert report.state == "done"
    assert [branch.attempts for branch in report.branches] == [1, 1]
    await raw.config_set("maxmemory", 0)
    await check_all_is_well(producer, workers, DOCUMENT)


async def test_a_document_whose_run_is_refused_does_not_stay(
    producer: Producer, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload is what takes the broker over its limit."""
    run, asked = Scripts.run, 0

    async def run_and_fill(self: Scripts, name: str, /, *payload: bytes, **arguments: Any) -> Any:
        nonlocal asked
        asked += name == "submit"
        await raw.config_set("maxmemory", 1 if asked == 2 else 0)
        return await run(self, name, *payload, **arguments)

    monkeypatch.setattr(Scripts, "run", run_and_fill)
    with pytest.raises(BrokerError, match="out of memory"):
        await producer.submit(DOCUMENT, ["What?"], any_model=True)
    (left,) = await raw.keys("swarmkv:document:*")
    assert 0 < await raw.pttl(left) <= 600_000
    assert await producer.runs() == []
    await producer.submit(DOCUMENT, ["What?"], any_model=True)
    assert await raw.pttl(left) > 600_000


# -- emptied


async def test_workers_of_a_broker_that_was_emptied_serve_new_runs(
    fleet: FaultyFleet, producer: Producer, raw: Any, tiny_llama_path: Path
) -> None:
    workers = [fleet.start("prefill", tiny_llama_path)]
    workers.append(fleet.start_faulty("branch", tiny_llama_path, {"decode_s": 0.05}))
    await fleet.beats(producer, *workers)
    lost = await producer.submit(DOCUMENT, ["What?"] * 3, sampling=LONG)
    await until(lost, BranchText, 3)
    await raw.flushall()

    async def is_known() -> bool:
        return await raw.smembers(keys.MODELS) == {b"default"} and len(await producer.workers()) == 2

    await eventually(is_known)
    assert await raw.hget(keys.key("model", alias="default"), "identity")
    await check_all_is_well(producer, workers, DOCUMENT)
    assert "no longer ours" in workers[1].log


@pytest.mark.parametrize("gone", ["arq:job:*", "arq:in-progress:*", "arq:retry:*", "swarmkv:queue:*"])
async def test_work_whose_arq_keys_were_deleted_is_done_all_the_same(
    gone: str, fleet: FaultyFleet, producer: Producer, raw: Any
) -> None:
    runs = [
        await producer.submit(f"{DOCUMENT}{n}", ["What?", "Why?"], sampling=SHORT, any_model=True) for n in range(3)
    ]

    async def delete() -> None:
        if names := await raw.keys(gone):
            await raw.delete(*names)

    await delete()
    fleet.start_faulty("prefill", "null", {}, null_engine=True)
    fleet.start_faulty("branch", "null", {"null_s": 0.2}, null_engine=True)

    async def are_done() -> bool:
        await delete()
        return all([(await run.report()).is_finished for run in runs])

    if gone == "swarmkv:queue:*":  # deleted once: nobody could take a job from a queue that is always deleted
        reports = [await run.results(30) for run in runs]
    else:
        await eventually(are_done, timeout_s=30)
        reports = [await run.report() for run in runs]
    for report in reports:
        assert report.state == "done"
        assert [branch.attempts for branch in report.branches] == [1, 1]


# -- written by others


class Malicious:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


async def test_pickles_in_jobs_and_queues_are_refused_and_never_run(
    fleet: FaultyFleet, producer: Producer, raw: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "owned"
    bad = pickle.dumps(Malicious(marker))

    async def forge(score: float) -> None:
        for name in await raw.keys("arq:job:*"):
            await raw.set(name, bad)
        await raw.set(b"arq:job:" + bad, bad)
        for role in ("prefill", "branch"):
            queue = keys.key("queue", role=role, alias="default")
            await raw.zadd(queue, dict.fromkeys((bad, b"\xff\xfe", b"", b"b:0:0:1", b"p:0:1"), score))

    run = await producer.submit(DOCUMENT, ["What?"] * 2, sampling=SHORT, any_model=True)
    await forge(1)
    workers = await start_null(fleet, producer)
    await raw.publish(keys.CONTROL, bad)
    await raw.publish(keys.key("doorbell", role="branch", alias="default"), bad)
    assert (await run.results(30)).state == "done"
    for _ in range(5):  # workers that know a document look at what waits behind the first
        await forge((await raw.time())[0] * 1000)
        later = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
        assert (await later.results(10)).state == "done"
    assert not marker.exists()
    assert [worker.log.count("refused a command") for worker in workers] == [0, 0]
    await check_all_is_well(producer, workers, "Another document.")


@pytest.mark.parametrize(
    "value", [pack({"t": "x", "f": ["no"], "a": 1, "k": 2, "et": "y"}), pack([1]), b"", b"\xc1"]
)
async def test_jobs_of_arq_that_make_no_sense_do_not_stop_the_work(
    value: bytes, fleet: FaultyFleet, producer: Producer, raw: Any
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT, any_model=True)
    (name,) = await raw.keys("arq:job:*")
    await raw.set(name, value)
    workers = await start_null(fleet, producer)
    report = await run.results(30)
    assert (report.state, report.branches[0].attempts) == ("done", 1)
    await check_all_is_well(producer, workers, DOCUMENT)


async def test_specs_of_an_unknown_version_fail_clearly_and_kill_nobody(
    fleet: FaultyFleet, producer: Producer, raw: Any
) -> None:
    bad_prefix = await producer.submit("A document.", ["What?"], sampling=SHORT, any_model=True)
    bad_branch = await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=SHORT, any_model=True)
    name = (await raw.hget(keys.key("run", run=bad_prefix.id), "prefix")).decode()
    await raw.hset(keys.key("prefix", prefix=name), "spec", pack({"v": 2}))
    await raw.hset(keys.key("branch", run=bad_branch.id, index=0), "spec", pack({"v": 2}))
    workers = await start_null(fleet, producer)
    reports = [await run.results(30) for run in (bad_prefix, bad_branch)]
    assert [report.state for report in reports] == ["failed", "completed_with_errors"]
    for report in reports:
        error = report.branches[0].error
        assert error is not None
        assert error.code == "protocol"
        assert "version 2" in error.message
    assert reports[1].branches[1].state == "done"
    await check_all_is_well(producer, workers, DOCUMENT)
