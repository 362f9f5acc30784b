"""Pickles and other foreign bytes, planted where records of runs are: refused, never run, and alone in that."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import ProtocolError
from swarmkv.protocol.settings import Settings
from tests.processes import Fleet

DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=4)


class Malicious:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that is there at the end if something was unpickled."""
    path = tmp_path / "owned"
    yield path
    assert not path.exists()


@pytest.fixture
async def raw(settings: Settings) -> AsyncIterator[Any]:
    client = connect(settings.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


async def test_a_forged_record_is_refused_by_name_and_hides_no_other_run(
    producer: Producer, raw: Any, marker: Path
) -> None:
    good = await producer.submit(DOCUMENT, ["What?"], any_model=True)
    foreign = [pickle.dumps(Malicious(marker)), b"\xff\xfe"]
    wrong = {
        name: [*foreign, b"", b"9" * 5_000] for name in ("state", "branches", "opened_ms", "prefill_ms", "tokens")
    }
    wrong |= {"error": foreign, "branches": [*wrong["branches"], b"-1", b"100001"]}
    wrong["opened_ms"].append(b"9" * 400)
    for field, value in ((field, value) for field, values in wrong.items() for value in values):
        bad = await producer.submit(DOCUMENT, ["What?"], any_model=True)
        await raw.hset(keys.key("run", run=bad.id), field, value)
        with pytest.raises(ProtocolError):
            await bad.report()
        assert good.id in [row.run_id for row in await producer.runs(100)]
    assert (await good.report()).state == "queued"


async def test_a_forged_result_or_event_is_refused_when_it_is_read(
    producer: Producer, raw: Any, marker: Path
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"], any_model=True)
    await raw.hset(keys.key("branch", run=run.id, index=0), "result", pickle.dumps(Malicious(marker)))
    with pytest.raises(ProtocolError, match="no msgpack of ours"):
        await run.report()
    await raw.xadd(keys.key("events", run=run.id), {"e": pickle.dumps(Malicious(marker))})
    with pytest.raises(ProtocolError, match="no msgpack of ours"):
        [event async for event in run.events()]


async def test_workers_outlive_forged_prefixes_and_specs_and_go_on(
    producer: Producer, raw: Any, fleet: Fleet, marker: Path
) -> None:
    bad = pickle.dumps(Malicious(marker))
    for role in ("prefill", "branch"):
        fleet.start(role, "null", null_engine=True)
    await fleet.ready(producer, 2)
    first = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    assert (await first.results(20)).state == "done"
    prefix = (await raw.hget(keys.key("run", run=first.id), "prefix")).decode()
    for field in ("snapshot", "spec", "tokens"):
        await raw.hset(keys.key("prefix", prefix=prefix), field, bad)
        again = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
        try:
            assert (await again.results(20)).is_finished
        except ProtocolError:
            assert field == "tokens"  # which the run's record has copied
        other = await producer.submit(f"{field} {DOCUMENT}", ["What?"], sampling=SHORT)
        assert (await other.results(20)).state == "done"
    await raw.sadd(keys.MODELS, bad)
    await raw.zadd(keys.WORKERS, {bad: 1})
    assert len(await producer.workers()) == 2
    for worker in fleet.processes:
        assert worker.process.poll() is None, worker.log
