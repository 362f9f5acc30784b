"""What branches say, on its way to a real broker that is away, or that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.ledger import Ledger, TakenBranch
from swarmkv.protocol.settings import Settings
from swarmkv.workers.outbox import Outbox
from tests.integration.test_ledger import done, make_ready, submit, take


@pytest.fixture
async def outbox(ledger: Ledger) -> AsyncIterator[Outbox]:
    """A running outbox of worker `w`."""
    outbox = Outbox(ledger, "w", flush_s=0.01)
    task = asyncio.create_task(outbox.run())
    yield outbox
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def taken_branch(ledger: Ledger, run_id: str) -> TakenBranch:
    await submit(ledger, run_id, 1)
    await make_ready(ledger) if run_id == "aa" else None
    (branch,) = await take(ledger)
    return branch


async def test_what_redis_refuses_for_good_is_not_tried_for_ever_and_blocks_nobody(
    ledger: Ledger, settings: Settings, outbox: Outbox
) -> None:
    spoilt, sound = await taken_branch(ledger, "aa"), await taken_branch(ledger, "bb")
    client = connect(settings.redis_url, timeout_s=5)
    await client.delete(keys.key("events", run="aa"))
    await client.set(keys.key("events", run="aa"), "no stream")
    await client.aclose(close_connection_pool=True)
    outbox.text(spoilt, "one")
    with pytest.raises(BrokerError, match="WRONGTYPE"):
        async with asyncio.timeout(20):
            await outbox.finish(done(spoilt))
    async with asyncio.timeout(20):
        assert await outbox.finish(done(sound))


async def test_an_ending_that_finds_redis_away_is_written_when_it_is_back(
    ledger: Ledger, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = await taken_branch(ledger, "aa")
    finish, answers = ledger.jobs.finish, [BrokerError("away"), BrokerError("away")]

    async def unreliable(*arguments: object) -> list[bool]:
        if answers:
            raise answers.pop()
        return await finish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger.jobs, "finish", unreliable)
    async with asyncio.timeout(20):
        assert await outbox.finish(done(branch))
    assert answers == []
