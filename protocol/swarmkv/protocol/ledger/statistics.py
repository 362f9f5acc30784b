"""The ledger's view for people who watch: what waits and runs, and what was counted. It changes nothing."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.errors import BrokerForbidden
from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.statistics import MINUTES_KEPT, Totals

ROLES: tuple[Role, ...] = ("prefill", "branch")
MINUTE_MS = 60_000
MAX_MODELS = 200  # that are looked at: the ones asked for last
MAX_LEASES = 10_000  # running jobs that are told apart by model


@dataclass(frozen=True, slots=True)
class QueueState:
    """Jobs of one role and model. `deferred` ones are to start later; `oldest_age_s` is None when none waits."""

    role: Role
    model: str
    waiting: int
    running: int
    deferred: int
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class WorkState:
    """All queues, and how much is open. `now_ms`: Redis' clock."""

    now_ms: int
    queues: tuple[QueueState, ...]
    runs_open: int
    branches_open: int
    dead: int


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Redis itself. `name`: redis or valkey. `max_bytes` 0: no limit. `is_durable`: with an append-only file."""

    name: str
    version: str
    used_bytes: int
    max_bytes: int
    policy: str
    is_durable: bool
    uptime_s: int
    clients: int


class StatisticsLedger:
    """Reads in few round trips. Copies of past minutes are kept, as they never change."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._past: dict[tuple[str, int], Totals] = {}

    async def models(self) -> list[str]:
        """Models that work was submitted for within a month, and those that a worker ever announced."""
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zrevrange(keys.ASKED, 0, MAX_MODELS - 1)
            pipe.smembers(keys.MODELS)
            asked, announced = await pipe.execute()
        names = [name.decode(errors="replace") for name in (*asked, *sorted(announced))]
        return sorted(list(dict.fromkeys(names))[:MAX_MODELS])

    async def work(self, models: Sequence[str]) -> WorkState:
        """Queues of these models, by role and then model."""
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.time()
            pipe.zrange(keys.LEASES, 0, MAX_LEASES - 1)
            now, leases = await pipe.execute()
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        running = await self._running(leases)
        places = [(role, model) for role in ROLES for model in models]
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for role, model in places:
                queue = keys.key("queue", role=role, alias=model)
                pipe.zcard(queue)
                pipe.zcount(queue, now_ms + 1, "+inf")
                pipe.zrange(queue, 0, 0, withscores=True)
            for index in (keys.ACTIVE, keys.OPEN, keys.DEAD):
                pipe.zcard(index)
            *rows, runs, branches, dead = await pipe.execute()
        queues = tuple(
            _queue(place, rows[3 * number : 3 * number + 3], running[place], now_ms)
            for number, place in enumerate(places)
        )
        return WorkState(now_ms, queues, runs, branches, dead)

    async def _running(self, leases: Sequence[bytes]) -> Tally[tuple[Role, str]]:
        """How many jobs of each role and model are leased to workers."""
        owners = Tally(owner for owner in map(_owner, leases) if owner is not None)
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for _, key in owners:
                pipe.hmget(key, "model")
            rows = await pipe.execute() if owners else []
        running: Tally[tuple[Role, str]] = Tally()
        for ((role, _), count), (model,) in zip(owners.items(), rows, strict=True):
            if model is not None:
                running[role, model.decode(errors="replace")] += count
        return running

    async def totals(self, models: Sequence[str]) -> dict[str, Totals]:
        """Counts of each model as of now."""
        names = (keys.key("model_stats", alias=model) for model in models)
        return dict(zip(models, await self._read(names), strict=True))

    async def past(self, models: Sequence[str], now_ms: int) -> dict[str, dict[int, Totals]]:
        """For each model its counts at the start of past minutes (since the epoch), the oldest first.

        A minute in which nobody swept is missing.
        """
        this_minute = now_ms // MINUTE_MS
        minutes = range(this_minute - MINUTES_KEPT + 1, this_minute + 1)
        asked = [(model, minute) for model in models for minute in minutes]
        unknown = [item for item in asked if item not in self._past]
        found = await self._read(keys.key("model_stats_minute", alias=model, minute=at) for model, at in unknown)
        known = self._past | dict(zip(unknown, found, strict=True))
        # This minute's copy may still come; a past one that is missing never will.
        self._past = {item: known[item] for item in asked if known[item].since_ms or item[1] < this_minute}
        return {model: {at: known[model, at] for at in minutes if known[model, at].since_ms} for model in models}

    async def _read(self, names: Iterable[str]) -> list[Totals]:
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(name)
            return [Totals.read(row) for row in await pipe.execute()]

    async def broker(self) -> BrokerState | None:
        """What Redis says of itself; None when this user may not ask."""
        try:
            with broker_errors():
                info = await self._redis.info()
        except BrokerForbidden:
            return None
        name = str(info.get("server_name", "redis"))
        return BrokerState(
            name=name,
            version=str(info.get(f"{name}_version") or info.get("redis_version", "")),
            used_bytes=int(info.get("used_memory", 0)),
            max_bytes=int(info.get("maxmemory", 0)),
            policy=str(info.get("maxmemory_policy", "")),
            is_durable=bool(info.get("aof_enabled", 0)),
            uptime_s=int(info.get("uptime_in_seconds", 0)),
            clients=int(info.get("connected_clients", 0)),
        )


def _owner(job: bytes) -> tuple[Role, str] | None:
    """The role of a job, and the key that knows its model; None for what is no job of ours."""
    kind, owner, *_ = [*job.decode(errors="replace").split(":"), ""]
    if kind == "b":
        return "branch", keys.key("run", run=owner)
    return ("prefill", keys.key("prefix", prefix=owner)) if kind == "p" else None


def _queue(place: tuple[Role, str], row: Sequence[Any], running: int, now_ms: int) -> QueueState:
    size, deferred, first = row
    waiting = max(0, size - deferred)
    age_s = max(0.0, now_ms - first[0][1]) / 1000 if waiting and first else None
    return QueueState(*place, waiting=waiting, running=running, deferred=deferred, oldest_age_s=age_s)
