"""How much work Redis may hold: refused with the numbers, in one step, counted exactly; and nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from swarmkv.producer import Producer
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import InvalidInput, Overloaded, RunNotFound
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, Limits, Outcome
from swarmkv.protocol.messages import BranchResult
from swarmkv.protocol.settings import Settings
from tests.integration.test_ledger import (
    DAY_MS,
    LEASE_MS,
    beat,
    branches_of,
    done,
    info_of,
    make_ready,
    run_of,
    submit,
    take,
    take_prefill,
)
from tests.waiting import eventually

EVERY_BROKER = True


@pytest.fixture
async def raw(settings: Settings) -> AsyncIterator[Any]:
    """A client of the test's database, to look and to spoil."""
    client = connect(settings.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


async def submit_limited(
    ledger: Ledger, run_id: str, limits: Limits, *, count: int = 1, document: bytes = b"text", ttl_ms: int = DAY_MS
) -> None:
    await ledger.runs.submit(
        run_of(run_id, document),
        branches_of(count),
        document,
        deadline_ms=DAY_MS,
        ttl_ms=ttl_ms,
        any_model=True,
        limits=limits,
    )


async def sweep(ledger: Ledger) -> None:
    await ledger.fleet.sweep(max_solo_crashes=2, lease_ms=LEASE_MS)


async def test_branches_over_the_limit_are_refused_with_the_numbers_and_nothing_is_kept(
    ledger: Ledger, raw: Any
) -> None:
    limits = Limits(branches=5)
    await submit_limited(ledger, "aa", limits, count=4)
    before = sorted(await raw.keys("*"))
    with pytest.raises(Overloaded, match="holds 4 open branches; 2 more would pass the limit of 5") as caught:
        await submit_limited(ledger, "bb", limits, count=2, document=b"another")
    assert "SWARMKV_MAX_OPEN_BRANCHES" in caught.value.hint
    with pytest.raises(RunNotFound):
        await ledger.runs.report("bb")
    assert sorted(await raw.keys("*")) == before
    await submit_limited(ledger, "cc", limits, count=1)


async def test_a_run_that_could_never_fit_is_bad_input(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="needs 6 open branches in Redis; the limit is 5"):
        await submit_limited(ledger, "aa", Limits(branches=5), count=6)
    with pytest.raises(InvalidInput, match="needs 9 bytes of documents"):
        await submit_limited(ledger, "aa", Limits(document_bytes=8), document=b"123456789")


async def test_every_way_in_which_a_branch_ends_makes_room_for_another(ledger: Ledger, raw: Any) -> None:
    limits = Limits(branches=3)
    await submit_limited(ledger, "aa", limits, count=3)
    await make_ready(ledger)
    first, second, _ = await take(ledger)
    await ledger.jobs.finish("w", [done(first)])
    await ledger.jobs.finish("w", [done(first)])  # refused, and counted once
    await submit_limited(ledger, "bb", limits)
    await ledger.jobs.hand_back("w", [second.job_id], reason="stopping")
    with pytest.raises(Overloaded):
        await submit_limited(ledger, "cc", limits)
    await ledger.runs.cancel("aa")
    await submit_limited(ledger, "cc", limits, count=2)
    await ledger.runs.cancel("bb")
    await ledger.runs.cancel("cc")
    assert await raw.exists(keys.OPEN) == 0


async def test_branches_past_their_deadline_count_no_more_though_nobody_sweeps(ledger: Ledger) -> None:
    await submit(ledger, "aa", 3, deadline_ms=1)

    async def fits() -> bool:
        try:
            await submit_limited(ledger, "bb", Limits(branches=3), count=3)
        except Overloaded:
            return False
        return True

    await eventually(fits)


async def test_documents_over_the_limits_are_refused_before_they_are_sent(ledger: Ledger, raw: Any) -> None:
    limits = Limits(documents=2, document_bytes=10)
    await submit_limited(ledger, "aa", limits, document=b"12345")
    with pytest.raises(Overloaded, match="holds 5 bytes of documents; 6 more would pass the limit of 10") as caught:
        await submit_limited(ledger, "bb", limits, document=b"123456")
    assert "expires in" in caught.value.hint
    await submit_limited(ledger, "bb", limits, document=b"1234")
    with pytest.raises(Overloaded, match="holds 2 documents; 1 more would pass the limit of 2"):
        await submit_limited(ledger, "cc", limits, document=b"1")
    await submit_limited(ledger, "dd", limits, document=b"12345")  # which is there
    assert len(await raw.keys("swarmkv:document:*")) == 2


async def test_producers_at_the_same_time_cannot_pass_a_limit_together(settings: Settings) -> None:
    limited = settings.model_copy(update={"max_open_branches": 6, "max_documents": 4})
    async with Producer(settings=limited) as one, Producer(settings=limited) as other:
        outcomes = await asyncio.gather(
            *(
                producer.submit(f"document {number % 7}", ["What?"], any_model=True)
                for number in range(20)
                for producer in (one, other)
            ),
            return_exceptions=True,
        )
        assert {type(item) for item in outcomes if isinstance(item, BaseException)} == {Overloaded}
        reports = [await item.report() for item in outcomes if not isinstance(item, BaseException)]
    client: Any = connect(settings.redis_url, timeout_s=5)
    documents = len(await client.keys("swarmkv:document:*"))
    assert await client.zcard(keys.OPEN) == len(reports) == 6
    assert await client.zcard(keys.DOCUMENTS) == documents <= 4
    await client.aclose(close_connection_pool=True)


async def test_documents_that_expired_or_were_deleted_count_no_more(ledger: Ledger, raw: Any) -> None:
    limits = Limits(documents=1, document_bytes=6)
    await ledger.runs.submit(
        run_of("aa", b"first"), branches_of(1), b"first", deadline_ms=1, ttl_ms=1, any_model=True, limits=limits
    )
    await raw.pexpire(keys.key("document", digest=digest_bytes(b"first")), 1)
    await raw.zadd(keys.DOCUMENTS, dict.fromkeys(await raw.zrange(keys.DOCUMENTS, 0, -1), 1))
    await submit_limited(ledger, "bb", limits, document=b"second")
    assert await raw.get(keys.DOCUMENT_BYTES) == b"6"
    await raw.delete(keys.key("document", digest=digest_bytes(b"second")))
    await sweep(ledger)
    assert await raw.exists(keys.DOCUMENTS, keys.DOCUMENT_BYTES) == 0
    await submit_limited(ledger, "cc", limits, document=b"third")
    assert await raw.get(keys.DOCUMENT_BYTES) == b"5"


async def test_an_upload_never_shortens_the_life_of_a_document_that_is_there(ledger: Ledger, raw: Any) -> None:
    await submit_limited(ledger, "aa", Limits())
    await ledger.runs._upload(digest_bytes(b"text"), b"text", Limits())
    assert await raw.pttl(keys.key("document", digest=digest_bytes(b"text"))) > DAY_MS


async def finish_round(ledger: Ledger, number: int) -> None:
    """A run that ends in one of four ways, and the worker that served it."""
    run_id, document = f"aa{number}", f"document {number}".encode()
    await ledger.runs.submit(
        run_of(run_id, document), branches_of(2), document, deadline_ms=2_000, ttl_ms=500, any_model=True
    )
    if number % 4 == 0:
        await ledger.runs.cancel(run_id)
        return
    if number % 4 == 1:
        return  # its deadline ends it
    (prefill,) = [item for item in await take_prefill(ledger) if item.spec == run_of(run_id, document).prefix]
    info = info_of(f"{number:032x}")
    assert await ledger.jobs.register("p", prefill, info, decoded=True, ttl_ms=1_000)
    branches = await take(ledger, f"w{number}")
    await beat(ledger, f"w{number}", [branch.job_id for branch in branches], lease_ms=500)
    if number % 4 == 2:
        failed = Outcome(branches[0], "failed", BranchResult(finish_reason="error"))
        await ledger.jobs.finish(f"w{number}", [failed, done(branches[1])])
        with suppress(RunNotFound):  # on a slow machine it has expired already, which is as well
            await ledger.recovery.retry(run_id, ["failed"])
    else:
        await ledger.jobs.rebuild(f"w{number}", branches[0], Overloaded("no"), max_rebuilds=0)
        await ledger.jobs.rebuild(f"w{number}", branches[1], Overloaded("no"), max_rebuilds=1)


async def test_after_any_number_of_runs_redis_holds_no_more_keys_than_after_the_first(
    ledger: Ledger, raw: Any
) -> None:
    """What stays is one of a kind: the time of the last sweep, the known models, the models asked for."""
    base = {keys.SWEPT, keys.MODELS, keys.ASKED}
    lasting = (b"arq:", b"swarmkv:queue:", b"swarmkv:document:", b"swarmkv:stats:", b"swarmkv:minute:")
    for number in range(24):
        await finish_round(ledger, number)

    async def is_back() -> bool:
        await sweep(ledger)
        await ledger.fleet.workers()
        for name in await raw.keys("*"):  # what lives for a lease, an upload or a month ends now
            if name.startswith(lasting) or name.endswith(b":events"):
                assert await raw.pttl(name) != -1, name
                await raw.pexpire(name, 1)
        return {name.decode() for name in await raw.keys("*")} <= base

    await eventually(is_back, timeout_s=15)


async def test_every_key_that_is_not_one_of_a_kind_has_a_time_to_live(ledger: Ledger, raw: Any) -> None:
    for number in range(4):
        await finish_round(ledger, number)
    await submit(ledger, "bb", 2)
    await take_prefill(ledger)
    lasting = {keys.SWEPT, keys.MODELS, keys.DOCUMENT_BYTES}  # one of a kind
    trimmed = {
        keys.ASKED,
        keys.RUNS,
        keys.ACTIVE,
        keys.OPEN,
        keys.READY,
        keys.LEASES,
        keys.WORKERS,
        keys.DEAD,
        keys.DOCUMENTS,
    }
    for name in await raw.keys("*"):
        if name.decode() not in lasting | trimmed:
            assert await raw.pttl(name) > 0, name
