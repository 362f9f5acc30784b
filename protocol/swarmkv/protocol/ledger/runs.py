"""The ledger's view of runs: accept, read, cancel, follow."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors, drop_members
from swarmkv.protocol.codec import decode, encode, unpack
from swarmkv.protocol.errors import BrokerLost, ProtocolError, RunNotFound, UnknownModel
from swarmkv.protocol.events import Event, decode_events
from swarmkv.protocol.ledger.limits import NO_LIMITS, Limits, check_room
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import (
    BranchReport,
    BranchResult,
    BranchSpec,
    BranchTimings,
    ErrorInfo,
    RunReport,
    RunSpec,
    TokenCounts,
)

Fields = dict[str, bytes]
_RUN_ID = re.compile(r"[0-9a-f]{1,32}")
MAX_BRANCHES = 100_000  # the most that SWARMKV_MAX_BRANCHES allows
MAX_COUNT = 1 << 53  # no count or time of ours comes near
UPLOAD_TTL_MS = 600_000  # a document whose run is then refused goes soon; an accepted run keeps it for its own life


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a listing; times are epoch milliseconds of Redis' clock."""

    run_id: str
    name: str
    state: str
    model: str
    branches: int
    open: int
    created_ms: int


class RunLedger:
    """Runs and their branches, as producers and readers use them."""

    def __init__(self, redis: ArqRedis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts

    async def submit(
        self,
        spec: RunSpec,
        branches: Sequence[BranchSpec],
        document: bytes,
        *,
        deadline_ms: int,
        ttl_ms: int,
        any_model: bool,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Accept a run: durable when this returns. The document is sent only if Redis lacks it.

        Raises UnknownModel, Overloaded, BrokerError; nothing was accepted then, unless the error says that this is
        not known.
        """
        arguments: dict[str, Any] = {
            "run": spec.run_id,
            "spec": encode(spec),
            "name": spec.name,
            "document_name": spec.document_name,
            "trace": spec.traceparent,
            "model": spec.prefix.model,
            "prefix": spec.prefix.prefix_id,
            "prefix_spec": encode(spec.prefix),
            "document": spec.prefix.document,
            "document_bytes": len(document),
            "branches": [
                [branch.name, encode(branch), math.ceil((branch.deadline_s or 0) * 1000)] for branch in branches
            ],
            "deadline_ms": deadline_ms,
            "ttl_ms": ttl_ms,
            "any_model": any_model,
            "limits": limits.as_argument(),
        }
        answer = await self._accept(arguments)
        if answer[0] == b"document_missing":
            await self._upload(spec.prefix.document, document, limits)
            answer = await self._accept(arguments)
        self._check_accepted(answer, spec.prefix.model)

    async def _accept(self, arguments: dict[str, Any]) -> list[Any]:
        """The script's answer. When it was lost on its way, Redis is asked whether the script has run."""
        try:
            answer: list[Any] = await self._scripts.run("submit", **arguments)
        except BrokerLost as lost:
            run = arguments["run"]
            try:
                if not await self.exists(run):
                    raise
            except BrokerLost:
                raise BrokerLost(
                    f"{lost.message} It is not known whether run {run} was accepted.",
                    hint=f"Once Redis is back, `swarmkv show {run}` tells.",
                ) from lost
            return [b"accepted"]
        return answer

    async def _upload(self, digest: str, document: bytes, limits: Limits) -> None:
        check_room(
            await self._scripts.run(
                "upload", document, document=digest, ttl_ms=UPLOAD_TTL_MS, limits=limits.as_argument()
            )
        )

    def _check_accepted(self, answer: list[Any], model: str) -> None:
        check_room(answer)
        if answer[0] == b"unknown_model":
            known = ", ".join(sorted(name.decode(errors="replace") for name in answer[1:])) or "none"
            raise UnknownModel(
                f"No worker ever announced the model {model!r}; known models: {known}.",
                hint="Start a worker for it, name a known one, or accept any with --any-model.",
            )
        if answer[0] != b"accepted":
            raise ProtocolError(f"The ledger refused the run: {answer[0].decode()}.")

    async def cancel(self, run: str, names: Sequence[str] = ()) -> list[str] | None:
        """End the open branches as cancelled, those of `names` if there are any; their names.

        None if the run had ended. Raises RunNotFound.
        """
        status, *ended = await self._scripts.run("cancel", run=checked_id(run), names=list(names))
        if status == b"unknown":
            raise RunNotFound(f"There is no run {run!r}.")
        return [name.decode() for name in ended] if status == b"cancelled" else None

    async def report(self, run: str) -> RunReport:
        """The run as it is now; raises RunNotFound, and ProtocolError for a record that is none of ours."""
        with broker_errors():
            fields = _text_keys(await self._redis.hgetall(keys.key("run", run=checked_id(run))))
            if not fields:
                raise RunNotFound(f"There is no run {run!r}.")
            pipe = self._redis.pipeline(transaction=False)
            for index in range(_branch_count(run, fields)):
                pipe.hgetall(keys.key("branch", run=run, index=index))
            pipe.time()
            *rows, now = await pipe.execute()
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        return read_report(run, fields, [_text_keys(row) for row in rows], now_ms)

    async def listing(self, limit: int) -> list[RunSummary]:
        """The newest runs first; ids whose run has expired are dropped from the index.

        What is no run of ours is passed over: it must not hide the others.
        """
        with broker_errors():
            ids: list[bytes] = await self._redis.zrevrange(keys.RUNS, 0, limit - 1)
            pipe = self._redis.pipeline(transaction=False)
            for run in ids:
                pipe.hmget(
                    keys.key("run", run=run.decode(errors="replace")),
                    "name",
                    "state",
                    "model",
                    "branches",
                    "open",
                    "created_ms",
                )
            rows = await pipe.execute() if ids else []
        await drop_members(
            self._redis, keys.RUNS, [run for run, row in zip(ids, rows, strict=True) if row[0] is None]
        )
        summaries = (_summary(run, row) for run, row in zip(ids, rows, strict=True))
        return [summary for summary in summaries if summary is not None]

    async def count(self) -> int:
        """How many runs are kept, but for those that have expired since anybody looked."""
        with broker_errors():
            return int(await self._redis.zcard(keys.RUNS))

    async def read_events(self, run: str, after: str, block_ms: int) -> tuple[str, list[Event]]:
        """The id to go on from, and the events behind stream id `after` ("0": all), waiting `block_ms`."""
        with broker_errors():
            answer = await self._redis.xread(
                {keys.key("events", run=checked_id(run)): after}, count=500, block=block_ms
            )
        events: list[Event] = []
        for _, entries in answer or []:
            for entry_id, entry in entries:
                after = entry_id.decode()
                events += decode_events(entry.get(b"e", b""))
        return after, events

    async def wait_done(self, run: str, block_ms: int) -> bool:
        """Wait up to `block_ms` for the run's end, without reading its events."""
        with broker_errors():
            return bool(await self._redis.xread({keys.key("done", run=checked_id(run)): "0"}, block=block_ms))

    async def exists(self, run: str) -> bool:
        """Is the run kept?"""
        with broker_errors():
            return bool(await self._redis.exists(keys.key("run", run=checked_id(run))))


def checked_id(run: str) -> str:
    """A run's id, which becomes part of keys; anything else names no run."""
    if not _RUN_ID.fullmatch(run):
        raise RunNotFound(f"There is no run {run!r}.")
    return run


def _text_keys(row: dict[bytes, bytes]) -> Fields:
    return {name.decode(errors="replace"): value for name, value in row.items()}


def _summary(run: bytes, row: list[bytes | None]) -> RunSummary | None:
    """None for a record that is no run's."""
    try:
        name, state, model = (value.decode() for value in row[:3])  # type: ignore[union-attr]
        branches, num_open, created_ms = (int(value) for value in row[3:])  # type: ignore[arg-type]
        if not max(branches, num_open, created_ms) <= MAX_COUNT:
            return None
        return RunSummary(run.decode(), name, state, model, branches, num_open, created_ms)
    except (AttributeError, TypeError, ValueError):
        return None


def _branch_count(run: str, fields: Fields) -> int:
    """How many branches a run's record states. Raises ProtocolError when it cannot be."""
    try:
        count = int(fields["branches"])
    except (KeyError, ValueError) as exc:
        raise _malformed(run) from exc
    if not 0 <= count <= MAX_BRANCHES:
        raise _malformed(run)
    return count


def _malformed(run: str) -> ProtocolError:
    return ProtocolError(
        f"The record of run {run} in Redis cannot be read.", hint="Another program has written to it."
    )


def read_report(run: str, fields: Fields, rows: list[Fields], now_ms: int) -> RunReport:
    """The report of a run's record and those of its branches; raises ProtocolError for what is none of ours."""
    try:
        return _run_report(run, fields, rows, now_ms)
    except (KeyError, ValueError, ArithmeticError) as exc:  # pydantic's and Unicode's errors are ValueErrors
        raise _malformed(run) from exc


def _run_report(run: str, fields: Fields, rows: list[Fields], now_ms: int) -> RunReport:
    prefill_ms = float(fields["prefill_ms"])
    branches = tuple(_branch_report(row) for row in rows if row)
    restored = sum(branch.tokens.reused > 0 for branch in branches)
    alone_ms = float(fields.get("snapshot_prefill_ms", b"0"))
    opened_ms = int(fields.get("opened_ms", fields["created_ms"]))
    open_ms = int(fields.get("finished_ms", now_ms)) - opened_ms
    snapshot = fields.get("snapshot")
    error = fields.get("error")
    return RunReport.model_validate(
        {
            "run_id": run,
            "state": fields["state"].decode(),
            "name": fields["name"].decode(),
            "model": fields["model"].decode(),
            "document_tokens": int(fields.get("tokens", 0)),
            "prefills_run": int(fields["prefills_run"]),
            "prefill_ms": prefill_ms,
            "prefill_saved_ms": max(0.0, restored * alone_ms - prefill_ms),
            "wall_ms": float(int(fields.get("worked_ms", 0)) + open_ms),
            "snapshot": snapshot.decode() if snapshot else None,
            "error": ErrorInfo.model_validate(unpack(error)) if error else None,
            "branches": branches,
        }
    )


def _branch_report(row: Fields) -> BranchReport:
    result = decode(BranchResult, row["result"]) if "result" in row else None
    worker = row.get("worker", b"").decode()
    return BranchReport.model_validate(
        {
            "name": row["name"].decode(),
            "state": row["state"].decode(),
            "text": result.text if result else "",
            "finish_reason": result.finish_reason if result else None,
            "error": result.error if result else None,
            "attempts": int(row["attempt"]),
            "worker": worker or None,
            "tokens": result.tokens if result else TokenCounts(),
            "timings_ms": result.timings_ms if result else BranchTimings(),
        }
    )
