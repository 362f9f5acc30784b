"""A broker that is read-only, set to drop keys, or emptied at work: an error in plain words, or no loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import BrokerError, RunNotFound
from swarmkv.protocol.events import BranchText, PrefillProgress
from swarmkv.protocol.settings import Settings
from tests.conftest import quick_settings
from tests.fault_support import (
    FaultyFleet,
    PrivateBroker,
    check_each_ended_once,
    faulty_fleet,
    heard_of,
    private_broker,
    until,
)
from tests.waiting import wait_until

DOCUMENT = "The retry limit is four.\n" * 20
LONG_DOCUMENT = "The retry limit is four.\n" * 120
SLOW = {"decode_s": 0.05}
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=90, ignore_eos=True)
NOWHERE = ("127.0.0.1", "1")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    with private_broker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def private(broker: PrivateBroker, tmp_path: Path) -> Settings:
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


# -- read-only


async def test_a_worker_and_a_producer_at_a_replica_are_told_so_at_once(
    fleet: FaultyFleet, producer: Producer, raw: Any
) -> None:
    await raw.replicaof(*NOWHERE)
    worker = fleet.start("branch", "null", null_engine=True)
    assert worker.process.wait(timeout=30) == 1
    assert "error: This Redis is a read-only replica. Point SWARMKV_REDIS_URL at the primary." in worker.log
    with pytest.raises(BrokerError, match="read-only replica"):
        await producer.submit(DOCUMENT, ["What?"], any_model=True)


async def test_a_primary_that_is_a_replica_for_a_while_costs_nobody_an_answer(
    fleet: FaultyFleet, producer: Producer, raw: Any, private: Settings, tiny_llama_path: Path
) -> None:
    workers = [fleet.start_faulty(role, tiny_llama_path, SLOW) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    run = await producer.submit(DOCUMENT, [f"Question {n}?" for n in range(4)], sampling=LONG)
    await until(run, BranchText, 4)
    await raw.replicaof(*NOWHERE)
    try:
        with pytest.raises(BrokerError, match="read-only replica"):
            await producer.submit(DOCUMENT, ["What?"])
        with pytest.raises(BrokerError, match="read-only replica"):
            await run.results()
        wait_until(lambda: "read-only replica" in workers[1].log, timeout_s=30)
        await asyncio.sleep(private.lease_s * 1.2)  # the fault itself: longer than a lease
    finally:
        await raw.replicaof("NO", "ONE")
    heard, report = await heard_of(run), await run.report()
    assert report.state == "done"
    assert max(branch.attempts for branch in report.branches) <= 2
    check_each_ended_once(heard, report)
    assert [worker.process.poll() for worker in workers] == [None, None]


# -- keys that vanish


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "noeviction"])
async def test_a_worker_names_the_eviction_policy_that_may_drop_work(
    policy: str, fleet: FaultyFleet, producer: Producer, raw: Any
) -> None:
    await raw.config_set("maxmemory-policy", policy)
    worker = fleet.start("branch", "null", null_engine=True)
    await fleet.beats(producer, worker)
    is_named = f"maxmemory-policy {policy}" in worker.log
    assert is_named == (policy != "noeviction")
    assert ("set it to noeviction" in worker.log) == is_named


async def test_who_follows_or_awaits_a_run_that_was_flushed_is_told_and_never_hangs(
    fleet: FaultyFleet, producer: Producer, raw: Any, tiny_llama_path: Path
) -> None:
    workers = [fleet.start_faulty(role, tiny_llama_path, SLOW) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    for document, event in ((LONG_DOCUMENT, PrefillProgress), (DOCUMENT, BranchText)):
        run = await producer.submit(document, ["What?"], sampling=LONG)
        waiting = [asyncio.create_task(heard_of(run)), asyncio.create_task(run.results())]
        await until(run, event)
        await raw.flushall()
        async with asyncio.timeout(20):
            for waiter in waiting:
                with pytest.raises(RunNotFound):
                    await waiter
        await fleet.beats(producer, *workers)
    report = await (await producer.submit("Another document.", ["What?"], sampling=SHORT)).results(30)
    assert report.state == "done"
