"""A run for people who look at it: when each step began, and beginnings of texts instead of whole ones.

A run may have a thousand branches and answers of megabytes. Nothing here reads a document, and what a reader knows
of a branch that has ended is not read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import decode, unpack
from swarmkv.protocol.errors import ProtocolError, RunNotFound
from swarmkv.protocol.ledger.runs import checked_id
from swarmkv.protocol.messages import (
    FINAL_BRANCH_STATES,
    FINAL_RUN_STATES,
    BranchResult,
    BranchSpec,
    BranchTimings,
    ErrorInfo,
    RunSpec,
    TokenCounts,
)

PREVIEW_CHARS = 600
RECENT_EVENTS = 400  # entries that are looked at again by who comes late
_BRANCH_FIELDS = ("name", "state", "attempt", "worker", "ready_ms", "started_ms")


@dataclass(frozen=True, slots=True)
class PrefillView:
    """The prefill that a run waits for or has waited for; `started_ms` is 0 when none has begun."""

    state: str
    started_ms: int
    worker: str


@dataclass(frozen=True, slots=True)
class RunView:
    """A run without its branches. Times are milliseconds of Redis' clock, 0 for what has not come yet."""

    run_id: str
    name: str
    state: str
    model: str
    document_name: str
    document: str
    document_bytes: int
    document_tokens: int
    branches: int
    open: int
    done: int
    failed: int
    cancelled: int
    created_ms: int
    opened_ms: int
    finished_ms: int
    deadline_ms: int
    now_ms: int
    prefills_run: int
    prefill_ms: float
    snapshot_prefill_ms: float
    snapshot: str
    error: ErrorInfo | None
    prefill: PrefillView

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_RUN_STATES

    @property
    def end_ms(self) -> int:
        """When it ended, or now."""
        return self.finished_ms or self.now_ms

    @property
    def prefill_saved_ms(self) -> float:
        """What the answered branches would have prefilled on their own, less what was prefilled."""
        return max(0.0, self.done * self.snapshot_prefill_ms - self.prefill_ms)


@dataclass(frozen=True, slots=True)
class BranchView:
    """A branch with the beginnings of its texts; `text_chars` is the answer's whole length."""

    index: int
    name: str
    state: str
    attempts: int
    worker: str
    ready_ms: int
    started_ms: int
    prompt: str
    prompt_chars: int
    preview: str = ""
    text_chars: int = 0
    finish_reason: str = ""
    error: ErrorInfo | None = None
    tokens: TokenCounts = field(default_factory=TokenCounts)
    timings_ms: BranchTimings = field(default_factory=BranchTimings)

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_BRANCH_STATES


class RunInspection:
    """Reads runs and their branches for showing."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable

    async def now_ms(self) -> int:
        """The time of Redis' clock. Raises BrokerError."""
        with broker_errors():
            return _now_ms(await self._redis.time())

    async def run(self, run: str) -> RunView:
        """The run as it is now. Raises RunNotFound, ProtocolError, BrokerError."""
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hgetall(keys.key("run", run=checked_id(run)))
            pipe.time()
            row, now = await pipe.execute()
            fields = _texts(row)
            if not fields:
                raise RunNotFound(f"There is no run {run!r}.")
            prefix = keys.key("prefix", prefix=fields.get("prefix", b"").decode(errors="replace"))
            prefill = await self._redis.hmget(prefix, "state", "started_ms", "worker")
        try:
            return _run_view(run, fields, prefill, _now_ms(now))
        except (KeyError, ValueError, ArithmeticError) as exc:  # pydantic's and Unicode's errors are ValueErrors
            raise _malformed(run) from exc

    async def branches(
        self, run: str, indexes: Sequence[int], known: Mapping[int, BranchView] | None = None
    ) -> list[BranchView]:
        """Those branches that exist, in order. What `known` has of them from before is not read again.

        Raises RunNotFound, ProtocolError, BrokerError.
        """
        known = known or {}
        rows = await self._rows(run, indexes, *_BRANCH_FIELDS)
        there = {index: row for index, row in zip(indexes, rows, strict=True) if row[0] is not None}
        try:
            views = await self._with_prompts(run, {index: known.get(index) for index in there})
            now = {index: _with_state(views[index], row) for index, row in there.items()}
            changed = [index for index, view in now.items() if view != views[index]]
            ended = [index for index in changed if now[index].is_finished]
            results = dict(zip(ended, await self._rows(run, ended, "result"), strict=True))
            for index in changed:
                data = results.get(index, [None])[0]
                now[index] = _with_result(now[index], decode(BranchResult, data) if data else None)
        except (KeyError, ValueError, TypeError, ArithmeticError) as exc:
            raise _malformed(run) from exc
        return list(now.values())

    async def _rows(self, run: str, indexes: Sequence[int], *names: str) -> list[list[bytes | None]]:
        """Some fields of some branches, in one round trip."""
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for index in indexes:
                pipe.hmget(keys.key("branch", run=checked_id(run), index=index), *names)
            rows: list[list[bytes | None]] = await pipe.execute() if indexes else []
        return rows

    async def _with_prompts(self, run: str, known: dict[int, BranchView | None]) -> dict[int, BranchView]:
        """What is known of branches; of a new one its name and the beginning of its prompt."""
        new = [index for index, view in known.items() if view is None]
        specs = dict(zip(new, await self._rows(run, new, "spec"), strict=True))
        return {index: view or _new_view(index, specs[index][0]) for index, view in known.items()}

    async def spec(self, run: str, index: int) -> BranchSpec:
        """What was asked. Raises RunNotFound, ProtocolError, BrokerError."""
        return decode(BranchSpec, await self._field(run, index, "spec") or b"")

    async def result(self, run: str, index: int) -> BranchResult | None:
        """The whole answer, None while there is none. Raises RunNotFound, ProtocolError, BrokerError."""
        data = await self._field(run, index, "result")
        return decode(BranchResult, data) if data else None

    async def events_from(self, run: str) -> str:
        """The id behind which the last RECENT_EVENTS entries of a stream come. Raises RunNotFound, BrokerError."""
        key = keys.key("events", run=checked_id(run))
        with broker_errors():
            entries = await self._redis.xrevrange(key, "+", "-", RECENT_EVENTS + 1)
        return entries[-1][0].decode() if len(entries) > RECENT_EVENTS else "0"

    async def _field(self, run: str, index: int, name: str) -> bytes | None:
        key = keys.key("branch", run=checked_id(run), index=index)
        with broker_errors():
            data, there = await self._redis.hmget(key, name, "name")
        if there is None:
            raise RunNotFound(f"Run {run} has no branch number {index}.")
        value: bytes | None = data
        return value


def _new_view(index: int, data: bytes | None) -> BranchView:
    spec = decode(BranchSpec, data or b"")
    chars = len(spec.prompt)
    return BranchView(index, spec.name, "", 0, "", 0, 0, prompt=spec.prompt[:PREVIEW_CHARS], prompt_chars=chars)


def _with_state(view: BranchView, row: list[bytes | None]) -> BranchView:
    _, state, attempt, worker, ready, started = row
    return replace(
        view,
        state=(state or b"").decode(),
        attempts=int(attempt or 0),
        worker=(worker or b"").decode(),
        ready_ms=int(ready or 0),
        started_ms=int(started or 0),
    )


def _with_result(view: BranchView, result: BranchResult | None) -> BranchView:
    result = result or BranchResult(finish_reason="stop")
    is_final = view.is_finished
    return replace(
        view,
        preview=result.text[:PREVIEW_CHARS],
        text_chars=len(result.text),
        finish_reason=result.finish_reason if is_final else "",
        error=result.error,
        tokens=result.tokens,
        timings_ms=result.timings_ms,
    )


def _run_view(run: str, fields: dict[str, bytes], prefill: list[bytes | None], now_ms: int) -> RunView:
    spec = decode(RunSpec, fields["spec"])
    error = fields.get("error")
    counts = ("branches", "open", "done", "failed", "cancelled", "created_ms", "deadline_ms", "prefills_run")
    return RunView(
        run_id=run,
        name=spec.name,
        state=fields["state"].decode(),
        model=spec.prefix.model,
        document_name=spec.document_name,
        document=spec.prefix.document,
        document_bytes=spec.document_bytes,
        document_tokens=int(fields.get("tokens", 0)),
        opened_ms=int(fields.get("opened_ms", fields["created_ms"])),
        finished_ms=int(fields.get("finished_ms", 0)),
        now_ms=now_ms,
        prefill_ms=float(fields["prefill_ms"]),
        snapshot_prefill_ms=float(fields.get("snapshot_prefill_ms", 0)),
        snapshot=fields.get("snapshot", b"").decode(),
        error=ErrorInfo.model_validate(unpack(error)) if error else None,
        prefill=PrefillView(
            state=(prefill[0] or b"absent").decode(),
            started_ms=int(prefill[1] or 0),
            worker=(prefill[2] or b"").decode(),
        ),
        **{name: int(fields[name]) for name in counts},
    )


def _now_ms(time: Sequence[int]) -> int:
    return int(time[0]) * 1000 + int(time[1]) // 1000


def _texts(row: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(errors="replace"): value for name, value in row.items()}


def _malformed(run: str) -> ProtocolError:
    return ProtocolError(
        f"The record of run {run} in Redis cannot be read.", hint="Another program has written to it."
    )
