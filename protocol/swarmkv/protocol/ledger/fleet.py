"""The ledger's view of workers: announce, beat, list, sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors, drop_members
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import WorkerInfo

STALE_QUEUE_MS = 5_000


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker whose last heartbeat has not expired."""

    info: WorkerInfo
    last_beat_age_s: float


@dataclass(frozen=True, slots=True)
class SweepCounts:
    """What one sweep mended."""

    leases: int
    deadlines: int
    requeued: int


class FleetLedger:
    """Workers, the models they announce, and the repair of what they leave behind."""

    def __init__(self, redis: ArqRedis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts

    async def announce(self, alias: str, *, identity: str = "", fingerprint: str = "") -> None:
        """Make an alias known for good; identity and fingerprint once the model is loaded."""
        with broker_errors():
            await self._redis.sadd(keys.MODELS, alias)
            if identity:
                await self._redis.hset(
                    keys.key("model", alias=alias),
                    mapping={"identity": identity, "fingerprint": fingerprint},
                )

    async def known_models(self) -> list[str]:
        """Every alias that a worker ever announced."""
        with broker_errors():
            return sorted(item.decode(errors="replace") for item in await self._redis.smembers(keys.MODELS))

    async def beat(self, info: WorkerInfo, jobs: Sequence[str], *, lease_ms: int) -> list[str]:
        """Renew a worker's entry and leases. Returns the ids of jobs that it no longer holds."""
        fields = {**info.model_dump(), "residents": " ".join(info.residents)}
        lost = await self._scripts.run("beat", worker=info.id, lease_ms=lease_ms, info=fields, jobs=list(jobs))
        return [item.decode() for item in lost]

    async def leave(self, worker: str, *, reason: str) -> int:
        """Take a worker off the list; what is still leased to it is queued again. Returns how many."""
        return int(await self._scripts.run("leave", worker=worker, reason=reason))

    async def workers(self) -> list[LiveWorker]:
        """Workers with a live heartbeat, by id; entries of dead ones are dropped."""
        return await self._live(await self._worker_ids())

    async def workers_on(self, host: str) -> list[LiveWorker]:
        """As `workers`, of one host alone; no entry of another host's worker is read."""
        ids = [worker for worker in await self._worker_ids() if f"-{host}-".encode() in worker]
        return [live for live in await self._live(ids) if live.info.host == host]

    async def workers_named(self, ids: Sequence[str]) -> list[LiveWorker]:
        """As `workers`, of these ids alone."""
        return await self._live([worker.encode() for worker in ids])

    async def _worker_ids(self) -> list[bytes]:
        with broker_errors():
            return list(await self._redis.zrange(keys.WORKERS, 0, -1))

    async def _live(self, ids: Sequence[bytes]) -> list[LiveWorker]:
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for worker in ids:
                pipe.hgetall(keys.key("worker", worker=worker.decode(errors="replace")))
            pipe.time()
            *rows, now = await pipe.execute()
        gone = [worker for worker, row in zip(ids, rows, strict=True) if not row]
        await drop_members(self._redis, keys.WORKERS, gone)
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        live = (_live(row, now_ms) for row in rows if row)
        return sorted((worker for worker in live if worker is not None), key=lambda worker: worker.info.id)

    async def queue_depth(self, role: str, alias: str) -> int:
        """Jobs that wait for a worker; running ones are not counted."""
        with broker_errors():
            return int(await self._redis.zcard(keys.key("queue", role=role, alias=alias)))

    async def sweep(self, *, max_solo_crashes: int, lease_ms: int, stale_ms: int = STALE_QUEUE_MS) -> SweepCounts:
        """Recover expired leases, end runs past their deadline, requeue what arq lost. Anyone may call it.

        When nobody swept for over half of `lease_ms`, Redis may have been away: expired leases get that long again.
        """
        answer = await self._scripts.run(
            "sweep", max_solo_crashes=max_solo_crashes, lease_ms=lease_ms, stale_ms=stale_ms
        )
        return SweepCounts(*answer)


def _live(row: dict[bytes, bytes], now_ms: int) -> LiveWorker | None:
    """None for an entry that is no worker's. Fields that a newer version has added are passed over."""
    try:
        fields: dict[str, Any] = {name.decode(): value.decode() for name, value in row.items()}
        beat_ms = int(fields["beat_ms"])
        fields["residents"] = tuple(fields.get("residents", "").split())
        info = WorkerInfo.model_validate({name: fields[name] for name in WorkerInfo.model_fields if name in fields})
        return LiveWorker(info=info, last_beat_age_s=max(0, now_ms - beat_ms) / 1000)
    except (ValueError, KeyError, ArithmeticError):  # pydantic's and Unicode's errors are ValueErrors
        return None
