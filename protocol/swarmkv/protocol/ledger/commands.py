"""The ledger's view of commands: told to workers, taken once, answered, remembered."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis

from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import decode, encode
from swarmkv.protocol.commands import SNAPSHOT_COMMANDS, Answer, Command, CommandRecord
from swarmkv.protocol.errors import (
    BrokerLost,
    CommandRefused,
    CommandUnanswered,
    InvalidInput,
    ProtocolError,
    WorkerNotFound,
)
from swarmkv.protocol.ledger.fleet import FleetLedger, LiveWorker
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.messages import WorkerInfo

DEFAULT_TIMEOUT_S = 10.0  # a worker looks at its inbox with each heartbeat, when no bell has called it
MAX_TIMEOUT_S = 3_600.0
MAX_WAITING = 16  # commands of one worker that it has not taken
MAX_KEPT = 1_000  # commands that are remembered
KEEP_MS = 7 * 86_400_000
ANSWER_MS = 60_000  # how long an answer can still be waited for; the record keeps it for longer
BLOCK_MS = 1_000  # one blocking read; far below the socket's timeout
STORE = "store"
ROLES = ("prefill", "branch")
_SNAPSHOT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TakenCommand:
    """A command that this worker, and no other, carries out now, once."""

    id: str
    command: Command


class CommandLedger:
    """Commands, from who asks and for who carries them out."""

    def __init__(self, redis: ArqRedis, scripts: Scripts, fleet: FleetLedger) -> None:
        self._redis: Any = redis  # redis-py types every reply as value or awaitable
        self._scripts = scripts
        self._fleet = fleet

    # -- who asks

    async def send(self, to: str, command: Command, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        """Tell a worker something and wait for its answer, at most `timeout_s`.

        `to` is a worker's id; or "prefill" or "branch": every live worker of that role, and all must do it; or
        "store", for commands about snapshots: one worker of each store, and one that did it is enough;
        "store:ID": of that store alone. An answer that is not `ok` says why.

        Raises WorkerNotFound when nobody is there, CommandUnanswered when no answer came (and says whether the
        command may have been carried out), CommandRefused when too many wait already, InvalidInput, BrokerError.
        """
        _check(to, command, timeout_s)
        if to in ROLES:
            workers = [live.info.id for live in await self._fleet.workers() if live.info.role == to]
            return _joined(await self._send_all(workers, f"{to} worker", command, timeout_s), needs=all)
        if to == STORE or to.startswith(STORE + ":"):
            workers = _keepers(await self._fleet.workers(), to.removeprefix(STORE).removeprefix(":"))
            return _joined(
                await self._send_all(workers, "worker that sees the store", command, timeout_s), needs=any
            )
        return await self._send_one(to, command, timeout_s)

    async def history(self, limit: int = 100) -> list[CommandRecord]:
        """What was asked, by whom, and what came of it, the newest first. What cannot be read is left out."""
        with broker_errors():
            ids = [item.decode() for item in await self._redis.zrevrange(keys.COMMANDS, 0, limit - 1)]
            pipe = self._redis.pipeline(transaction=False)
            for command in ids:
                pipe.hgetall(keys.key("command", command=command))
            rows = await pipe.execute() if ids else []
        records = (_record(command, row) for command, row in zip(ids, rows, strict=True) if row)
        return [record for record in records if record is not None]

    async def _send_all(
        self, workers: Sequence[str], what: str, command: Command, timeout_s: float
    ) -> list[Answer | Exception]:
        if not workers:
            raise WorkerNotFound(f"No {what} is alive.")
        asked = (self._send_one(worker, command, timeout_s) for worker in workers)
        answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        return answers

    async def _send_one(self, worker: str, command: Command, timeout_s: float) -> Answer:
        command_id = secrets.token_hex(8)
        end_s = time.monotonic() + timeout_s
        await self._ask(command_id, worker, command, timeout_s)
        while (left_s := end_s - time.monotonic()) > 0:
            if (answer := await self._read_answer(command_id, left_s)) is not None:
                return answer
        return await self._give_up(command_id, worker, command, timeout_s)

    async def _ask(self, command_id: str, worker: str, command: Command, timeout_s: float) -> None:
        arguments: dict[str, Any] = {
            "id": command_id,
            "worker": worker,
            "spec": encode(command),
            "life_ms": int(timeout_s * 1000),
            "keep_ms": KEEP_MS,
            "max_waiting": MAX_WAITING,
            "max_kept": MAX_KEPT,
        }
        try:
            status = await self._scripts.run("command", **arguments)
        except BrokerLost:  # once more: the script knows a command by its id
            status = await self._scripts.run("command", **arguments)
        if status == b"nobody":
            raise WorkerNotFound(f"There is no live worker {worker!r}.")
        if status == b"busy":
            raise CommandRefused(
                f"{MAX_WAITING} commands wait for worker {worker} already.",
                hint="It is busy or stuck; see its log.",
            )

    async def _read_answer(self, command_id: str, left_s: float) -> Answer | None:
        block_ms = max(1, min(BLOCK_MS, int(left_s * 1000)))
        with broker_errors():
            read = await self._redis.xread({keys.key("answer", command=command_id): "0"}, block=block_ms)
        return decode(Answer, read[0][1][0][1].get(b"a", b"")) if read else None

    async def _give_up(self, command_id: str, worker: str, command: Command, timeout_s: float) -> Answer:
        state, answer = await self._scripts.run("withdraw", id=command_id, worker=worker)
        if answer:
            return decode(Answer, answer)
        if state == b"taken":
            raise CommandUnanswered(
                f"Worker {worker} took the command {command.kind!r}, and has not answered within {timeout_s:g} s.",
                hint="It may still carry it out, or have died over it; `swarmkv workers` tells.",
            )
        raise CommandUnanswered(
            f"Worker {worker} has not taken the command {command.kind!r} within {timeout_s:g} s; nothing was done.",
            hint="It has just died, is stopped, or cannot reach Redis; `swarmkv workers` tells.",
        )

    # -- who carries out

    async def take(self, worker: str) -> list[TakenCommand]:
        """The commands that wait for this worker; each is given once. What cannot be read is refused here."""
        taken: list[TakenCommand] = []
        for command_id, spec in await self._scripts.run("take_commands", worker=worker):
            try:
                taken.append(TakenCommand(command_id.decode(), decode(Command, spec)))
            except ProtocolError as exc:
                refusal = Answer(ok=False, message=exc.message, hint=exc.hint, code=exc.code, worker=worker)
                await self.answer(worker, command_id.decode(), refusal)
        return taken

    async def answer(self, worker: str, command_id: str, answer: Answer) -> bool:
        """Say what came of a command that `take` gave; False if it is not remembered as this worker's any more."""
        state = "done" if answer.ok else "refused"
        written = await self._scripts.run(
            "answer", id=command_id, worker=worker, answer=encode(answer), state=state, wait_ms=ANSWER_MS
        )
        return bool(written == 1)


def _check(to: str, command: Command, timeout_s: float) -> None:
    """Raise InvalidInput for what no worker could carry out."""
    is_of_store = to == STORE or to.startswith(STORE + ":")
    if command.kind in SNAPSHOT_COMMANDS:
        if not _SNAPSHOT.fullmatch(command.snapshot):
            raise InvalidInput(f"{command.snapshot!r} is no key of a snapshot.", hint="A key is 32 hex digits.")
    elif is_of_store:
        raise InvalidInput(f"A store cannot be told to {command.kind}.", hint="Name a worker, or a role.")
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidInput(f"{timeout_s:g} s is no time to wait: give 0 to {MAX_TIMEOUT_S:,.0f}.")


def _keepers(workers: Sequence[LiveWorker], store: str) -> list[str]:
    """The worker of each store, or of this one, that was heard of last. Who names no store counts for its host."""
    latest: dict[str, LiveWorker] = {}
    for live in workers:
        name = _store_of(live.info)
        if store and live.info.store != store:
            continue
        if name not in latest or live.last_beat_age_s < latest[name].last_beat_age_s:
            latest[name] = live
    return [live.info.id for live in latest.values()]


def _store_of(info: WorkerInfo) -> str:
    return info.store or f"of {info.host}"


def _joined(results: Sequence[Answer | Exception], *, needs: Any) -> Answer:
    """One answer of several. Raises the first error when nobody has answered."""
    answers = [result for result in results if isinstance(result, Answer)]
    errors = [result for result in results if not isinstance(result, Answer)]
    for error in errors:
        if not answers or not isinstance(error, CommandUnanswered | CommandRefused | WorkerNotFound):
            raise error
    parts = [*answers, *(Answer(ok=False, message=str(error), code="command_unanswered") for error in errors)]
    if len(parts) == 1:
        return parts[0]
    ok = bool(needs(part.ok for part in parts))
    shown = [part for part in parts if part.ok] if ok else [part for part in parts if not part.ok]
    return Answer(
        ok=ok,
        message=" ".join(dict.fromkeys(part.message for part in shown))[:2_000],
        code="" if ok else shown[0].code,
        hint="" if ok else shown[0].hint,
        parts=tuple(parts),
    )


def _record(command_id: str, row: dict[bytes, bytes]) -> CommandRecord | None:
    """None for a record that is none of ours."""
    try:
        answer = row.get(b"answer")
        return CommandRecord.model_validate(
            {
                "id": command_id,
                "worker": row[b"worker"].decode(),
                "command": decode(Command, row[b"spec"]),
                "state": row[b"state"].decode(),
                "asked_ms": int(row[b"asked_ms"]),
                "ended_ms": int(row.get(b"ended_ms", 0)),
                "answer": decode(Answer, answer) if answer else None,
            }
        )
    except (ValueError, KeyError, ProtocolError):  # pydantic's and Unicode's errors are ValueErrors
        return None
