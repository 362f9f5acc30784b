"""The ledger's view of work: take, finish, hand back, rebuild, register."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import decode, encode
from swarmkv.protocol.errors import ProtocolError, SwarmkvError
from swarmkv.protocol.events import Event, encode_events
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import BranchResult, BranchSpec, ErrorInfo, PrefixSpec, SnapshotInfo

Role = Literal["prefill", "branch"]
AFFINITY_PATIENCE_MS = 2_000  # longer than a restore by far, shorter than anybody notices


@dataclass(frozen=True, slots=True)
class TakenPrefill:
    """A leased prefill. `job_id` is arq's id; `generation` fences it. `run_id` asked for it first."""

    job_id: str
    prefix_id: str
    generation: int
    spec: PrefixSpec
    run_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class TakenBranch:
    """A leased branch with the snapshot it continues. `attempt` fences it; `queue_ms` is ready to taken."""

    job_id: str
    run_id: str
    index: int
    attempt: int
    spec: BranchSpec
    is_solo: bool
    queue_ms: float
    prefix_id: str
    prefix: PrefixSpec
    snapshot: str
    generation: int
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt at a branch."""

    branch: TakenBranch
    state: Literal["done", "failed"]
    result: BranchResult


def error_info(error: SwarmkvError) -> ErrorInfo:
    """An error as data."""
    return ErrorInfo(code=error.code, message=error.message, hint=error.hint)


class JobLedger:
    """Jobs as workers use them; every change is guarded by worker and attempt."""

    def __init__(self, redis: ArqRedis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts

    async def take_prefills(self, alias: str, worker: str, *, limit: int, lease_ms: int) -> list[TakenPrefill]:
        """Lease up to `limit` queued prefills of a model; one that cannot be read fails here."""
        _, taken, _ = await self._scripts.run(
            "take",
            role="prefill",
            alias=alias,
            worker=worker,
            limit=limit,
            lease_ms=lease_ms,
            held=0,
            residents=[],
            patience_ms=0,
        )
        prefills: list[TakenPrefill] = []
        for row in taken:
            try:
                prefills.append(_taken_prefill(row))
            except ProtocolError as exc:
                await self._fail_prefill(worker, *_prefill_ids(row), exc)
        return prefills

    async def take_branches(
        self,
        alias: str,
        worker: str,
        *,
        limit: int,
        lease_ms: int,
        held: int = 0,
        residents: Sequence[str] = (),
        patience_ms: int = AFFINITY_PATIENCE_MS,
    ) -> list[TakenBranch]:
        """Lease up to `limit` queued branches of a model; those that cannot be read fail here.

        Branches of `residents`, the snapshots that the worker has in its KV cache, come first, until the oldest
        branch has waited `patience_ms`. A branch that must run alone is only given to a worker that holds no
        other (`held` is 0), by itself.
        """
        _, taken, rows = await self._scripts.run(
            "take",
            role="branch",
            alias=alias,
            worker=worker,
            limit=limit,
            lease_ms=lease_ms,
            held=held,
            residents=list(residents),
            patience_ms=patience_ms,
        )
        prefixes = {row[0]: row for row in rows}
        branches: list[TakenBranch] = []
        unreadable: list[list[Any]] = []
        for row in taken:
            try:
                branches.append(_taken_branch(row, prefixes[row[4]]))
            except ProtocolError as exc:
                unreadable.append(_refusal(row, exc))
        if unreadable:
            await self._scripts.run("finish", worker=worker, items=unreadable)
        return branches

    async def document(self, digest: str) -> bytes | None:
        """The document's UTF-8 bytes, None if they are gone."""
        with broker_errors():
            data: bytes | None = await self._redis.get(keys.key("document", digest=digest))
            return data

    async def finish(self, worker: str, outcomes: Sequence[Outcome]) -> list[bool]:
        """Write results; False where the attempt had lost its branch and was refused."""
        items = [
            [
                outcome.branch.run_id,
                outcome.branch.index,
                outcome.branch.attempt,
                outcome.state,
                encode(outcome.result),
                outcome.result.model_dump(exclude_none=True),
            ]
            for outcome in outcomes
        ]
        return [answer == 1 for answer in await self._scripts.run("finish", worker=worker, items=items)]

    async def hand_back(self, worker: str, jobs: Sequence[str], *, reason: str, delay_ms: int = 0) -> int:
        """Queue jobs of this worker again without blame, to start in `delay_ms`. Returns how many."""
        return int(
            await self._scripts.run("handback", worker=worker, jobs=list(jobs), reason=reason, delay_ms=delay_ms)
        )

    async def rebuild(self, worker: str, branch: TakenBranch, error: SwarmkvError, *, max_rebuilds: int) -> str:
        """A branch's snapshot is unusable: wait for a new one, or fail after too many. Returns a state."""
        answer: bytes = await self._scripts.run(
            "rebuild",
            run=branch.run_id,
            index=branch.index,
            attempt=branch.attempt,
            worker=worker,
            prefix=branch.prefix_id,
            generation=branch.generation,
            max_rebuilds=max_rebuilds,
            error=error_info(error).model_dump(),
        )
        return answer.decode()

    async def register(
        self, worker: str, prefill: TakenPrefill, info: SnapshotInfo, *, decoded: bool, ttl_ms: int
    ) -> bool:
        """Make a published snapshot known and release its waiters; False if no longer held."""
        answer = await self._scripts.run(
            "register",
            prefix=prefill.prefix_id,
            generation=prefill.generation,
            worker=worker,
            snapshot=info.snapshot,
            tokens=info.prefix_tokens,
            prefill_ms=info.prefill_ms,
            size_bytes=info.size_bytes,
            identity=info.identity,
            host=info.host,
            decoded=decoded,
            ttl_ms=ttl_ms,
        )
        return bool(answer == 1)

    async def fail_prefill(self, worker: str, prefill: TakenPrefill, error: SwarmkvError) -> bool:
        """Fail every branch that waits for this prefill; False if it was no longer held."""
        return await self._fail_prefill(worker, prefill.prefix_id, prefill.generation, error)

    async def _fail_prefill(self, worker: str, prefix_id: str, generation: int, error: SwarmkvError) -> bool:
        answer = await self._scripts.run(
            "fail_prefill",
            prefix=prefix_id,
            generation=generation,
            worker=worker,
            error=error_info(error).model_dump(),
        )
        return bool(answer == 1)

    async def waiting_runs(self, prefix_id: str) -> list[str]:
        """Ids of the runs that wait for a prefix, for progress events."""
        with broker_errors():
            members = await self._redis.zrange(keys.key("waiters", prefix=prefix_id), 0, -1)
        return list(dict.fromkeys(member.decode(errors="replace").split(":")[0] for member in members))

    async def emit(self, events: dict[str, list[Event]]) -> None:
        """Append events to the streams of their runs, in one round trip."""
        entries = [[run, encode_events(items)] for run, items in events.items() if items]
        if entries:
            await self._scripts.run("emit", entries=entries)

    async def forget_snapshots(self, snapshots: Sequence[str]) -> None:
        """Snapshots left the store: their prefixes are no longer ready."""
        await self._scripts.run("forget", snapshots=list(snapshots))

    async def drop_snapshot(self, snapshot: str, *, force: bool) -> bool:
        """As `forget_snapshots`, before one is removed by hand. False if it is needed, unless by `force`."""
        return bool(await self._scripts.run("drop", snapshot=snapshot, force=force) == 1)

    async def pinned_snapshots(self) -> frozenset[str]:
        """Snapshots that unfinished runs need."""
        return frozenset(item.decode(errors="replace") for item in await self._scripts.run("pinned"))


def _prefill_ids(row: list[Any]) -> tuple[str, int]:
    """Prefix id and generation of what `take` leased."""
    _, prefix_id, generation = row[0].decode().split(":")
    return prefix_id, int(generation)


def _taken_prefill(row: list[Any]) -> TakenPrefill:
    prefix_id, generation = _prefill_ids(row)
    return TakenPrefill(
        job_id=row[0].decode(),
        prefix_id=prefix_id,
        generation=generation,
        spec=decode(PrefixSpec, row[1]),
        run_id=row[6].decode(errors="replace"),
        traceparent=row[5].decode(errors="replace"),
    )


def _branch_ids(row: list[Any]) -> tuple[str, int, int]:
    """Run, index and attempt of what `take` leased."""
    _, run_id, index, attempt = row[0].decode().split(":")
    return run_id, int(index), int(attempt)


def _taken_branch(row: list[Any], prefix: list[Any]) -> TakenBranch:
    run_id, index, attempt = _branch_ids(row)
    return TakenBranch(
        job_id=row[0].decode(),
        run_id=run_id,
        index=index,
        attempt=attempt,
        spec=decode(BranchSpec, row[1]),
        is_solo=row[2] == 1,
        queue_ms=float(row[3]),
        prefix_id=row[4].decode(),
        prefix=decode(PrefixSpec, prefix[1]),
        snapshot=prefix[2].decode(errors="replace"),  # what is no key is found missing, and built again
        generation=prefix[3],
        traceparent=row[5].decode(errors="replace"),
    )


def _refusal(row: list[Any], error: SwarmkvError) -> list[Any]:
    """The end of a branch that cannot be read, as `finish` takes it."""
    result = BranchResult(finish_reason="error", error=error_info(error))
    return [*_branch_ids(row), "failed", encode(result), result.model_dump(exclude_none=True)]
