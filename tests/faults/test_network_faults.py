"""A line to the broker that is cut, silent, slow or breaks in mid-answer: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.errors import BrokerError, BrokerLost
from swarmkv.protocol.events import BranchText
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.settings import Settings
from tests.conftest import SOCKET_NAME
from tests.fault_support import (
    FaultyFleet,
    PrivateBroker,
    check_each_ended_once,
    faulty_fleet,
    heard_of,
    private_broker,
    until,
)
from tests.flaky_proxy import FAIR, FlakyProxy, Weather, flaky_proxy
from tests.rounds import by_round
from tests.waiting import wait_until

DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=80, ignore_eos=True)
CUT = Weather(is_cut=True)
SILENT = Weather(is_silent=True)
AWAY_S = by_round(2.5, 30.0)  # in the short round, too, longer than a lease
IMPATIENT: dict[str, Any] = {"redis_timeout_s": 0.5}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    with private_broker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def proxy(broker: PrivateBroker) -> Iterator[FlakyProxy]:
    with flaky_proxy(broker.directory / SOCKET_NAME) as proxy:
        yield proxy


@pytest.fixture
def distant(settings: Settings, proxy: FlakyProxy) -> Settings:
    """Settings that reach the broker through the line."""
    return settings.model_copy(update={"redis_url": proxy.url})


@pytest.fixture
def fleet(distant: Settings, tmp_path: Path) -> Iterator[FaultyFleet]:
    with faulty_fleet(distant, tmp_path / "logs") as fleet:
        yield fleet


@pytest.fixture
async def producer(distant: Settings) -> AsyncIterator[Producer]:
    async with Producer(settings=distant) as producer:
        yield producer


@pytest.fixture
async def near(settings: Settings, broker: PrivateBroker) -> AsyncIterator[Producer]:
    """A producer beside the broker."""
    async with Producer(settings=settings.model_copy(update={"redis_url": broker.url})) as producer:
        yield producer


@pytest.mark.parametrize("away", [CUT, SILENT], ids=["cut", "silent"])
async def test_a_line_that_is_gone_for_longer_than_a_lease_costs_neither_work_nor_words(
    away: Weather, proxy: FlakyProxy, fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path
) -> None:
    workers = [
        fleet.start_faulty(role, tiny_llama_path, {"decode_s": 0.05}, **IMPATIENT) for role in ("prefill", "branch")
    ]
    await fleet.beats(producer, *workers)
    run = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(4)], sampling=LONG)
    following = asyncio.create_task(heard_of(run))
    await until(run, BranchText, 4)
    proxy.turn(away)
    await asyncio.sleep(AWAY_S)  # the fault itself: so long nobody reaches the broker
    proxy.turn(FAIR)
    heard, report = await following, await run.report()
    assert (report.state, report.prefills_run) == ("done", 1)
    assert {branch.attempts for branch in report.branches} == {1}
    check_each_ended_once(heard, report)
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert [worker.log.count("Loaded") for worker in workers] == [1, 1]


async def test_a_worker_that_alone_is_cut_off_loses_its_branches_and_cannot_overwrite_them(
    proxy: FlakyProxy, broker: PrivateBroker, fleet: FaultyFleet, near: Producer, tiny_llama_path: Path
) -> None:
    beside = {"redis_url": broker.url}
    prefill = fleet.start("prefill", tiny_llama_path, "default", **beside)
    victim = fleet.start_faulty("branch", tiny_llama_path, {"decode_s": 0.05}, **IMPATIENT)
    await fleet.beats(near, prefill, victim)
    run = await near.submit(DOCUMENT, [f"Question {n}?" for n in range(4)], sampling=LONG)
    await until(run, BranchText, 4)
    proxy.turn(CUT)
    fleet.start("branch", tiny_llama_path, "default", **beside)
    heard, report = await heard_of(run), await run.report()
    assert report.state == "done"
    assert [branch.attempts for branch in report.branches] == [2] * 4
    check_each_ended_once(heard, report)
    proxy.turn(FAIR)
    await fleet.beats(near, victim)
    wait_until(lambda: "a newer attempt has" in victim.log or "no longer ours" in victim.log, timeout_s=30)
    assert await run.report() == report
    check_each_ended_once(await heard_of(run), report)


async def test_a_line_that_is_slow_and_breaks_off_loses_and_doubles_nothing(
    proxy: FlakyProxy, fleet: FaultyFleet, producer: Producer, near: Producer
) -> None:
    for role in ("prefill", "branch", "branch"):
        fleet.start_faulty(role, "null", {"null_s": 0.01}, null_engine=True, slots=4)
    await fleet.ready(near, 3)
    proxy.turn(Weather(delay_s=0.02, breaks=0.02))
    prompts = [f"Question {n}?" for n in range(30)]
    runs = [await near.submit(f"{DOCUMENT}{n}", prompts, sampling=SHORT) for n in range(by_round(2, 20))]
    heard = await asyncio.gather(*(heard_of(producer.run(run.id)) for run in runs))
    assert proxy.breaks > 10
    for run, told in zip(runs, heard, strict=True):
        report = await run.report()
        assert report.state == "done"
        check_each_ended_once(told, report)
    assert [worker.process.poll() for worker in fleet.processes] == [None] * 3


# -- a submission whose answer is lost


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch, proxy: FlakyProxy) -> list[Weather]:
    """What the line does from the moment at which the first answer to a submission was lost."""
    run, weather = Scripts.run, [FAIR]

    async def run_and_lose(self: Scripts, name: str, /, *payload: bytes, **arguments: Any) -> Any:
        answer = await run(self, name, *payload, **arguments)
        if name == "submit" and answer[0] == b"accepted":
            proxy.turn(weather[0])
            raise BrokerLost("Redis cannot be reached (the answer was lost).")
        return answer

    monkeypatch.setattr(Scripts, "run", run_and_lose)
    return weather


async def test_a_submission_whose_answer_got_lost_is_accepted_once(
    lost_answers: list[Weather], producer: Producer, near: Producer
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"], any_model=True)
    assert [summary.run_id for summary in await near.runs()] == [run.id]


async def test_who_cannot_be_told_whether_a_run_was_accepted_is_told_its_name(
    lost_answers: list[Weather], producer: Producer, near: Producer
) -> None:
    lost_answers[0] = CUT
    with pytest.raises(BrokerError, match="not known whether run") as caught:
        await producer.submit(DOCUMENT, ["What?"], any_model=True)
    (summary,) = await near.runs()
    assert summary.run_id in caught.value.hint


async def test_a_submission_that_reached_nobody_is_refused_for_certain(
    proxy: FlakyProxy, producer: Producer
) -> None:
    proxy.close()
    with pytest.raises(BrokerError) as caught:
        await producer.submit(DOCUMENT, ["What?"], any_model=True)
    assert "not known" not in str(caught.value)
