"""Commands in the ledger: given out once, in time, answered, remembered; by calls alone, without workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.commands import Answer, Command
from swarmkv.protocol.errors import CommandRefused, CommandUnanswered, InvalidInput, WorkerNotFound
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.ledger.commands import KEEP_MS, MAX_KEPT, MAX_WAITING, TakenCommand
from swarmkv.protocol.messages import WorkerInfo
from swarmkv.protocol.settings import Settings
from tests.waiting import eventually

PAUSE = Command(kind="pause", by="ada on host-1")
KEY = "5a" * 16


@pytest.fixture
def database(settings: Settings) -> Any:
    return redis.Redis.from_url(settings.redis_url)


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[Ledger]:
    """A second one, as another process has it."""
    client = connect(settings.redis_url, timeout_s=5)
    yield Ledger(client, max_events=100)
    await client.aclose(close_connection_pool=True)


async def beat(ledger: Ledger, worker: str, **fields: Any) -> None:
    known: dict[str, Any] = {"role": "branch", "model": "m", "pid": 1, "host": "h", "slots": 1}
    await ledger.fleet.beat(WorkerInfo(id=worker, **(known | fields)), [], lease_ms=60_000)


async def take_one(ledger: Ledger, worker: str) -> TakenCommand:
    """Wait for the worker's next command."""
    found: list[TakenCommand] = []

    async def came() -> bool:
        found.extend(await ledger.commands.take(worker))
        return bool(found)

    await eventually(came)
    [taken] = found
    return taken


async def obey(ledger: Ledger, worker: str, *, ok: bool = True, message: str = "It is so.") -> TakenCommand:
    taken = await take_one(ledger, worker)
    code = "" if ok else "command_refused"
    assert await ledger.commands.answer(worker, taken.id, Answer(ok=ok, message=message, code=code, worker=worker))
    return taken


async def test_a_command_is_answered_and_remembered_with_who_asked(ledger: Ledger, other: Ledger) -> None:
    await beat(ledger, "w1")
    answer, taken = await asyncio.gather(ledger.commands.send("w1", PAUSE), obey(other, "w1"))
    assert (answer.ok, answer.message, answer.worker) == (True, "It is so.", "w1")
    assert taken.command == PAUSE
    [record] = await other.commands.history()
    assert (record.id, record.worker, record.command, record.state) == (taken.id, "w1", PAUSE, "done")
    assert record.answer == answer
    assert 0 < record.asked_ms <= record.ended_ms


async def test_a_command_is_given_out_once_however_many_ask(ledger: Ledger, other: Ledger, database: Any) -> None:
    await beat(ledger, "w1")
    sending = asyncio.create_task(ledger.commands.send("w1", PAUSE))
    taken = await take_one(other, "w1")
    again = await asyncio.gather(*(other.commands.take("w1") for _ in range(10)))
    assert not any(again)
    assert database.exists(keys.key("inbox", worker="w1")) == 0
    answer = Answer(ok=False, message="No.", code="command_refused", worker="w1")
    assert not await other.commands.answer("w2", taken.id, answer)
    assert await other.commands.answer("w1", taken.id, answer)
    assert not await other.commands.answer("w1", taken.id, Answer(ok=True, message="Or yes?"))
    said = await sending
    assert said == answer
    with pytest.raises(CommandRefused, match=r"^No\.$"):
        said.check()


async def test_a_command_to_nobody_is_refused_in_words_at_once(ledger: Ledger, database: Any) -> None:
    with pytest.raises(WorkerNotFound, match="no live worker 'w1'"):
        await ledger.commands.send("w1", PAUSE)
    for to, said in (("branch", "No branch worker is alive"), ("store", "No worker that sees the store is alive")):
        with pytest.raises(WorkerNotFound, match=said):
            await ledger.commands.send(to, PAUSE.model_copy(update={"kind": "pin", "snapshot": KEY}))
    assert database.keys("swarmkv:command*") == []


async def test_what_nobody_takes_in_time_is_never_carried_out(ledger: Ledger, database: Any) -> None:
    await beat(ledger, "w1")
    with pytest.raises(CommandUnanswered, match=r"not taken the command 'pause' within 0\.05 s; nothing was done"):
        await ledger.commands.send("w1", PAUSE, timeout_s=0.05)
    assert database.exists(keys.key("inbox", worker="w1")) == 0
    assert await ledger.commands.take("w1") == []
    assert [record.state for record in await ledger.commands.history()] == ["expired"]


async def test_a_command_whose_asker_died_expires(ledger: Ledger, database: Any) -> None:
    await beat(ledger, "w1")
    sending = asyncio.create_task(ledger.commands.send("w1", PAUSE, timeout_s=30))
    await eventually(lambda: _is_waiting(ledger))
    sending.cancel()
    await asyncio.wait([sending])
    [record] = await ledger.commands.history()
    database.hset(keys.key("command", command=record.id), "until_ms", 1)  # as if its time were over
    assert await ledger.commands.take("w1") == []
    assert [record.state for record in await ledger.commands.history()] == ["expired"]


async def _is_waiting(ledger: Ledger) -> bool:
    return [record.state for record in await ledger.commands.history()] == ["waiting"]


async def test_who_took_a_command_and_is_silent_may_have_done_it(ledger: Ledger, other: Ledger) -> None:
    await beat(ledger, "w1")

    async def unanswered() -> None:
        with pytest.raises(CommandUnanswered, match="took the command 'pause', and has not answered") as caught:
            await ledger.commands.send("w1", PAUSE, timeout_s=1)
        assert "may still carry it out" in caught.value.hint

    _, taken = await asyncio.gather(unanswered(), take_one(other, "w1"))
    await other.commands.answer("w1", taken.id, Answer(ok=True, message="Late.", worker="w1"))
    [record] = await ledger.commands.history()
    assert (record.state, record.answer and record.answer.message) == ("done", "Late.")


async def test_a_worker_has_few_commands_waiting_and_redis_remembers_a_thousand(
    ledger: Ledger, database: Any
) -> None:
    await beat(ledger, "w1")
    waiting = [asyncio.create_task(ledger.commands.send("w1", PAUSE, timeout_s=30)) for _ in range(MAX_WAITING)]

    async def all_wait() -> bool:
        return len(await ledger.commands.history()) == MAX_WAITING

    await eventually(all_wait)
    with pytest.raises(CommandRefused, match=f"{MAX_WAITING} commands wait for worker w1"):
        await ledger.commands.send("w1", PAUSE)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await ledger.commands.take("w1")
    now_ms = time.time_ns() // 1_000_000
    database.zadd(keys.COMMANDS, {f"expired-{number}": now_ms - KEEP_MS - number for number in range(MAX_KEPT)})
    database.zadd(keys.COMMANDS, {f"kept-{number}": now_ms - KEEP_MS // 2 + number for number in range(MAX_KEPT)})
    database.hset(keys.key("command", command="kept-0"), mapping={"state": "done"})
    with pytest.raises(CommandUnanswered):
        await ledger.commands.send("w1", PAUSE, timeout_s=0.01)
    assert database.zcard(keys.COMMANDS) == MAX_KEPT
    assert database.exists(keys.key("command", command="kept-0")) == 0
    for key in database.keys("swarmkv:command*"):
        assert 0 < database.pttl(key) <= KEEP_MS, key


async def test_a_role_is_told_as_a_whole_and_one_that_refuses_is_the_answer(ledger: Ledger, other: Ledger) -> None:
    for worker in ("w1", "w2"):
        await beat(ledger, worker)
    await beat(ledger, "p1", role="prefill")
    answer, *_ = await asyncio.gather(
        ledger.commands.send("branch", PAUSE),
        obey(other, "w1", message="w1 is."),
        obey(other, "w2", message="w2 is."),
    )
    assert (answer.ok, sorted(part.worker for part in answer.parts)) == (True, ["w1", "w2"])
    assert {"w1 is.", "w2 is."} == {part.message for part in answer.parts}
    refused, *_ = await asyncio.gather(
        ledger.commands.send("branch", PAUSE), obey(other, "w1"), obey(other, "w2", ok=False, message="w2 is not.")
    )
    assert (refused.ok, refused.message, refused.code) == (False, "w2 is not.", "command_refused")
    assert await other.commands.take("p1") == []


async def test_a_store_is_told_by_one_of_its_workers_and_one_store_that_does_it_is_enough(
    ledger: Ledger, other: Ledger
) -> None:
    pin = Command(kind="pin", snapshot=KEY)
    await beat(ledger, "a1", store="a")
    await beat(ledger, "b1", store="b")
    answer, *_ = await asyncio.gather(
        ledger.commands.send("store", pin), obey(other, "a1", ok=False, message="a has none."), obey(other, "b1")
    )
    assert (answer.ok, answer.message) == (True, "It is so.")
    only, _ = await asyncio.gather(ledger.commands.send("store:a", pin), obey(other, "a1"))
    assert only.worker == "a1"
    with pytest.raises(WorkerNotFound):
        await ledger.commands.send("store:c", pin)


@pytest.mark.parametrize(
    ("to", "command", "timeout_s"),
    [
        ("store", PAUSE, 1.0),
        ("store", Command(kind="drop", snapshot="../../etc/passwd"), 1.0),
        ("w1", Command(kind="pin"), 1.0),
        ("w1", PAUSE, 0.0),
        ("w1", PAUSE, float("nan")),
    ],
)
async def test_what_no_worker_could_do_is_refused_before_it_is_written(
    ledger: Ledger, database: Any, to: str, command: Command, timeout_s: float
) -> None:
    await beat(ledger, "w1")
    with pytest.raises(InvalidInput):
        await ledger.commands.send(to, command, timeout_s=timeout_s)
    assert database.keys("swarmkv:command*") == []


async def test_a_command_that_cannot_be_read_is_refused_and_hides_no_other(ledger: Ledger, database: Any) -> None:
    await beat(ledger, "w1")
    sending = asyncio.create_task(ledger.commands.send("w1", PAUSE, timeout_s=30))
    await eventually(lambda: _is_waiting(ledger))
    forged = {"spec": b"\x80\x04junk", "state": "waiting", "until_ms": 9e15, "worker": "w1", "asked_ms": 1}
    database.hset(keys.key("command", command="forged"), mapping=forged)
    database.zadd(keys.key("inbox", worker="w1"), {"forged": 1, "gone": 2})
    [taken] = await ledger.commands.take("w1")
    assert taken.command == PAUSE
    await ledger.commands.answer("w1", taken.id, Answer(ok=True, message="Done."))
    assert (await sending).ok
    assert database.hget(keys.key("command", command="forged"), "state") == b"refused"
    assert [record.id for record in await ledger.commands.history()] == [taken.id]
