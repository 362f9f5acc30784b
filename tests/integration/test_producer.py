"""The producer against a real broker, without workers: what is accepted, what is warned of, what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmkv.producer import Producer, SyncProducer
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import (
    BrokerError,
    ConfigError,
    ProtocolError,
    RunNotFinished,
    RunNotFound,
    UnknownModel,
)
from swarmkv.protocol.events import RunDone, RunWarning
from swarmkv.protocol.settings import Settings
from tests.conftest import server_binary, start_server, stop_server

EVERY_BROKER = True


async def test_a_model_that_nobody_announced_is_refused_and_any_model_accepts_it(producer: Producer) -> None:
    with pytest.raises(UnknownModel, match="known models: none"):
        await producer.submit("text", ["What?"], model="unheard-of")
    run = await producer.submit("text", ["What?"], model="unheard-of", any_model=True)
    assert (await run.report()).state == "queued"


async def test_no_living_worker_is_a_warning_at_once_and_the_deadline_ends_the_run(producer: Producer) -> None:
    run = await producer.submit("text", ["What?"], any_model=True, deadline_s=0.3)
    assert [warning.message for warning in run.warnings] == [
        f"No {role} worker for model 'default' is alive; the run waits for one." for role in ("prefill", "branch")
    ]
    events = [event async for event in run.events()]
    assert isinstance(events[0], RunWarning)
    assert isinstance(events[-1], RunDone)
    report = await run.results(20)
    assert report.state == "failed"
    assert report.error is not None
    assert report.error.code == "deadline_exceeded"


async def test_waiting_longer_than_asked_for_is_an_error_and_the_run_goes_on(producer: Producer) -> None:
    run = await producer.submit("text", ["What?"], any_model=True)
    with pytest.raises(RunNotFinished, match=run.id):
        await run.results(0.05)
    assert (await run.report()).state == "queued"


async def test_an_unknown_run_is_an_error_and_never_a_hang(producer: Producer) -> None:
    known = await producer.submit("text", ["What?"], any_model=True)
    for run_id in ("0123456789ab", f"{known.id}:branch:0", f"{known.id}:events", "", "\ud800", "*"):
        run = producer.run(run_id)
        for call in (run.report(), run.results(20), run.cancel()):
            with pytest.raises(RunNotFound):
                await call
        with pytest.raises(RunNotFound):
            async for _ in run.events():
                pass


async def test_a_document_is_stored_once_and_never_in_a_job(producer: Producer, settings: Settings) -> None:
    secret = "The secret retry limit is four."
    for _ in range(3):
        await producer.submit(secret, ["What?"] * 2, any_model=True)
    client = connect(settings.redis_url, timeout_s=5)
    documents = await client.keys("swarmkv:document:*")
    jobs = [await client.get(key) for key in await client.keys("arq:job:*")]
    await client.aclose(close_connection_pool=True)
    assert len(documents) == 1
    assert len(jobs) == 1
    assert secret.encode() not in jobs[0]


async def test_a_broker_that_is_down_is_an_error_with_a_remedy() -> None:
    async with Producer("redis://127.0.0.1:1/0", Settings(_env_file=None)) as producer:
        with pytest.raises(BrokerError, match="cannot be reached") as caught:
            await producer.submit("text", ["What?"])
    assert "SWARMKV_REDIS_URL" in caught.value.hint


async def test_a_wrong_password_and_a_wrong_database_are_named(tmp_path: Path) -> None:
    binary = server_binary("valkey")
    assert binary is not None
    server = start_server(binary, tmp_path, "valkey")
    try:
        async with Producer(server.url.replace("db=0", "db=99"), Settings(_env_file=None)) as producer:
            with pytest.raises(BrokerError, match="DB index is out of range") as caught:
                await producer.submit("text", ["What?"])
        assert "database number" in caught.value.hint
        client = connect(server.url, timeout_s=5)
        await client.config_set("requirepass", "right")
        await client.aclose(close_connection_pool=True)
        for password in ("wrong", ""):
            url = server.url.replace("unix://", f"unix://:{password}@" if password else "unix://")
            async with Producer(url, Settings(_env_file=None)) as producer:
                with pytest.raises(BrokerError) as caught:
                    await producer.submit("text", ["What?"])
            assert "password" in caught.value.hint
            assert not caught.value.is_passing
    finally:
        stop_server(server)


def test_a_url_that_is_none_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    bad = ["http://host", "localhost:6379", "redis://:s@[::1", "redis://:pw@127.0.0.1:abc/0"]
    for url in [*bad, "redis://127.0.0.1/abc", "redis://127.0.0.1/0?foo=bar"]:
        with pytest.raises(ConfigError, match="cannot be understood"):
            Producer(url, Settings(_env_file=None))
    with pytest.raises(BrokerError, match="No broker: SWARMKV_REDIS_URL is not set"):
        Producer(settings=Settings(_env_file=None))


def test_the_blocking_facade_has_the_same_shape(settings: Settings) -> None:
    with SyncProducer(settings=settings) as producer:
        run = producer.submit("text", ["What?"], any_model=True, deadline_s=0.3)
        events = list(run.events())
        assert isinstance(events[-1], RunDone)
        assert run.results(20).state == "failed"
        assert producer.run(run.id).report().run_id == run.id
        assert [row.run_id for row in producer.runs()] == [run.id]
        assert producer.workers() == []
        assert not run.cancel()
        stream = run.events()
        next(stream)
        with pytest.raises(UnknownModel):
            producer.submit("text", ["What?"], model="unheard-of")
    producer.close()
    with pytest.raises(ConfigError, match="closed"):
        producer.runs()
    del stream


def test_every_public_method_of_the_async_producer_has_a_blocking_twin() -> None:
    from swarmkv.producer import RunHandle, SyncRunHandle

    for twin, original in ((SyncProducer, Producer), (SyncRunHandle, RunHandle)):
        public = {name for name in vars(original) if not name.startswith("_")}
        assert public - {name for name in vars(twin) if not name.startswith("_")} == set()


async def test_an_entry_without_events_is_a_protocol_error(producer: Producer, settings: Settings) -> None:
    run = await producer.submit("text", ["What?"], any_model=True)
    client = connect(settings.redis_url, timeout_s=5)
    await client.xadd(f"swarmkv:run:{run.id}:events", {"other": "field"})
    await client.aclose(close_connection_pool=True)
    with pytest.raises(ProtocolError):
        async for _ in run.events():
            pass


async def test_two_submissions_at_the_same_time_queue_one_prefill(producer: Producer, settings: Settings) -> None:
    await asyncio.gather(*(producer.submit("text", ["What?"], any_model=True) for _ in range(10)))
    client = connect(settings.redis_url, timeout_s=5)
    assert await client.zcard("swarmkv:queue:prefill:default") == 1
    await client.aclose(close_connection_pool=True)
