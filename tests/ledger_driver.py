"""Driving the ledger on a real broker with faults, a clock that is set by hand, and eyes that see every key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from unittest.mock import patch

import redis
from arq.connections import ArqRedis
from redis.exceptions import ConnectionError as RedisConnectionError

from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.events import BranchDone, BranchStarted, BranchText, Event, RunDone, decode_events
from swarmkv.protocol.ledger import Ledger, scripts

CLOCK = "test:clock"  # seconds
REDIS_TIME = "redis.call('TIME')"
STALL_S = 60  # however slow this machine is: only a fault of the test may lose a call
# Lives and steps are multiples of five seconds. What really passed between two steps is rounded away.
ADVANCE = """
local ms = ARGV[1] * 1000
redis.call('INCRBY', 'test:clock', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do
  local ttl = redis.call('PTTL', key)
  local left = math.ceil(ttl / 5000) * 5000
  if ttl >= 0 and left <= ms then redis.call('DEL', key)
  elseif ttl >= 0 then redis.call('PEXPIRE', key, left - ms) end
end
"""


real_source = scripts.source


def source_by_clock(name: str) -> str:
    """A script of the ledger that reads its time from a key of the test."""
    text = real_source(name)
    assert text.count(REDIS_TIME) == 1, "the scripts tell the time in another way: look at this seam"
    return text.replace(REDIS_TIME, f"{{redis.call('GET', '{CLOCK}'), 0}}")


@dataclass(frozen=True)
class Fault:
    """The connection breaks at a command of a call: before it, or when it has taken effect."""

    command: int
    has_effect: bool


class FaultyRedis(ArqRedis):
    """A client whose connection can break at any command, or stop before each but the first until it is let go."""

    fault: Fault | None = None
    is_slow = False

    def start_call(self, fault: Fault | None) -> None:
        """Count the commands of a new call."""
        self.fault, self.num_sent = fault, 0
        self.answers: list[Any] = []  # of scripts that took effect
        self.is_paused, self.go_on = asyncio.Event(), asyncio.Event()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        number, self.num_sent = self.num_sent, self.num_sent + 1
        if self.is_slow and number > 0:
            self.is_paused.set()
            await self.go_on.wait()
            self.go_on.clear()
        fault = self.fault if self.fault and self.fault.command == number else None
        if fault and not fault.has_effect:
            raise RedisConnectionError("lost before it was sent")
        client: Any = super()  # redis-py leaves it untyped
        answer = await client.execute_command(*args, **options)
        if args[0] == "EVALSHA":
            self.answers.append(answer)
        if fault:
            raise RedisConnectionError("its answer was lost")
        return answer


@dataclass(frozen=True)
class Reply:
    """A call as the caller sees it (`value` None: it does not know), and what the scripts in it answered."""

    value: Any
    is_lost: bool
    answers: list[Any]

    @property
    def took_effect(self) -> bool:
        return bool(self.answers)


class Driver:
    """One ledger on one loop. `close` it."""

    def __init__(self, url: str, now_s: int) -> None:
        self.clock = patch.object(scripts, "source", source_by_clock)
        self.clock.start()
        self.raw: Any = redis.Redis.from_url(url)
        self.raw.flushdb()
        self.raw.set(CLOCK, now_s)
        self.loop = asyncio.new_event_loop()
        pool = connect(url, timeout_s=STALL_S).connection_pool
        self.redis = FaultyRedis(connection_pool=pool, job_serializer=pack, job_deserializer=unpack)
        self.slow_redis = FaultyRedis(connection_pool=pool, job_serializer=pack, job_deserializer=unpack)
        self.ledger = Ledger(self.redis, max_events=20_000)
        self.slow_ledger = Ledger(self.slow_redis, max_events=20_000)
        self.slow: asyncio.Task[Any] | None = None
        for path in (files("swarmkv.protocol.ledger") / "lua").iterdir():
            if path.name != "common.lua":  # sent beforehand, so that a call is as many commands each time
                self.raw.script_load(scripts.source(path.name.removesuffix(".lua")))

    def call(self, work: Callable[[Ledger], Awaitable[Any]], fault: Fault | None = None) -> Reply:
        """Run one call of the ledger to its end."""
        self.redis.start_call(fault)
        try:
            value = self.loop.run_until_complete(_awaited(work(self.ledger)))
            return Reply(value, is_lost=False, answers=self.redis.answers)
        except BrokerError:
            if fault is None:
                raise
            return Reply(None, is_lost=True, answers=self.redis.answers)

    def start_slowly(self, work: Callable[[Ledger], Awaitable[Any]]) -> list[Any] | None:
        """Begin a call that stops before its second command; as `go_on_slowly`."""
        self.slow_redis.start_call(None)
        self.slow_redis.is_slow = True
        self.slow = self.loop.create_task(_awaited(work(self.slow_ledger)))
        return self._until_it_stops()

    def go_on_slowly(self) -> list[Any] | None:
        """Let it go on by one command. What its scripts answered when that was its end, None if it was not."""
        self.slow_redis.is_paused.clear()
        self.slow_redis.go_on.set()
        return self._until_it_stops()

    def _until_it_stops(self) -> list[Any] | None:
        assert self.slow is not None
        paused = self.loop.create_task(_awaited(self.slow_redis.is_paused.wait()))
        self.loop.run_until_complete(asyncio.wait({self.slow, paused}, return_when=asyncio.FIRST_COMPLETED))
        paused.cancel()
        if not self.slow.done():
            return None
        self.slow.result()
        self.slow = None
        return self.slow_redis.answers

    def die_slowly(self) -> None:
        """The process that made the call is gone."""
        assert self.slow is not None
        self.slow.cancel()
        self.loop.run_until_complete(asyncio.wait({self.slow}))
        self.slow = None

    def advance(self, seconds: int) -> None:
        """Let time pass, also for what expires."""
        self.raw.eval(ADVANCE, 0, seconds)

    def close(self) -> None:
        if self.slow is not None:
            self.die_slowly()
        self.loop.run_until_complete(self.redis.aclose(close_connection_pool=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.raw.close()
        self.clock.stop()

    # -- eyes

    def names(self, pattern: str) -> set[str]:
        return {name.decode() for name in self.raw.keys(pattern)}

    def members(self, key: str) -> dict[str, float]:
        """A sorted set."""
        return {member.decode(): score for member, score in self.raw.zrange(key, 0, -1, withscores=True)}

    def fields(self, name: str, **parts: str | int) -> dict[str, str]:
        """A hash, what is no text in it left as it can be read."""
        row = self.raw.hgetall(keys.key(name, **parts))
        return {field.decode(): value.decode(errors="replace") for field, value in row.items()}


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


@dataclass
class Follower:
    """Hears the events of one run, and knows what may not be said."""

    after: str = "-"
    attempts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    ended: dict[str, str] = field(default_factory=dict)
    run_state: str | None = None

    def expect_again(self, branches: list[str]) -> None:
        """Branches that had ended, and with them perhaps the run, were put back."""
        for branch in branches:
            del self.ended[branch]
            self.run_state = None

    def hear(self, driver: Driver, run_id: str) -> None:
        """Read on, and check each new event."""
        for entry_id, entry in driver.raw.xrange(keys.key("events", run=run_id), self.after):
            self.after = f"({entry_id.decode()}"
            for event in decode_events(entry[b"e"]):
                self._check(event)

    def _check(self, event: Event) -> None:
        assert self.run_state is None, f"after the run's end: {event}"
        if isinstance(event, RunDone):
            self.run_state = event.state
        attempt, branch = getattr(event, "attempt", None), getattr(event, "branch", "")
        if attempt is None:
            return
        if isinstance(event, BranchText):
            return  # of a worker that does not know yet that it has lost the branch, too; followers drop it
        assert branch not in self.ended, f"after the branch's end: {event}"
        assert attempt >= self.attempts[branch], f"an older attempt speaks: {event}"
        assert not (isinstance(event, BranchStarted) and attempt == 0)
        self.attempts[branch] = attempt
        if isinstance(event, BranchDone):
            self.ended[branch] = event.state
