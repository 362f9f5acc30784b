"""Carrying out what a worker is told: each command once, and answered in words.

bell or heartbeat ─▶ take (the ledger gives each command out once) ─▶ carry out ─▶ answer ─▶ drain ends the process
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.commands import Answer, Command
from swarmkv.protocol.errors import BrokerError, CommandRefused, SnapshotMissing, SwarmkvError
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.ledger.commands import TakenCommand
from swarmkv.protocol.messages import WorkerState
from swarmkv.snapshots import SnapshotStore

logger = logging.getLogger(__name__)

ANSWER_S = 60.0  # Redis may be away for a while; who asked is told by then that nobody knows


class Controlled(Protocol):
    """What a worker lets itself be told. `pause` and `resume` return once it is so, `drain` at once."""

    @property
    def state(self) -> WorkerState: ...

    @property
    def num_held(self) -> int: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    def drain(self, grace_s: float | None) -> None: ...


class Commands:
    """One worker's inbox. `run` is a side task of the worker; the store is the caller's."""

    def __init__(
        self, ledger: Ledger, worker_id: str, worker: Controlled, store: SnapshotStore, *, grace_s: float
    ) -> None:
        self._ledger = ledger
        self._worker_id = worker_id
        self._worker = worker
        self._store = store
        self._grace_s = grace_s
        self._rung = asyncio.Event()
        self._carry_out: dict[str, Callable[[Command], Awaitable[str]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "pin": self._pin,
            "unpin": self._unpin,
            "drop": self._drop,
        }

    def ring(self) -> None:
        """A command may be waiting."""
        self._rung.set()

    async def run(self, every_s: float) -> None:
        """Look when the bell rings, and every `every_s` in case that it was missed; until cancelled."""
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._rung.wait()
            except TimeoutError:
                pass
            self._rung.clear()
            await self._look()

    async def _look(self) -> None:
        try:
            taken = await self._ledger.commands.take(self._worker_id)
        except BrokerError as exc:
            logger.debug("no commands: %s", exc.message, extra={"action": "broker_lost"})
            return
        for item in taken:
            await self._answer(item, await self._obey(item.command))

    async def _obey(self, command: Command) -> Answer:
        """What is refused, or fails, is an answer, too: whoever asked must hear of it, and the worker goes on."""
        logger.info(
            "told to %s by %s",
            command.kind,
            command.by or "somebody",
            extra={
                "action": "command_taken",
                "command": command.kind,
                "by": command.by,
                "snapshot": command.snapshot,
            },
        )
        try:
            message = await self._carry_out[command.kind](command)
        except SwarmkvError as exc:
            return self._refusal(exc)
        except Exception as exc:  # a bug of ours
            logger.exception("command %s", command.kind, extra={"action": "command_bug"})
            return self._refusal(CommandRefused(f"The command failed unexpectedly: {type(exc).__name__}."))
        return Answer(ok=True, message=message, worker=self._worker_id)

    def _refusal(self, error: SwarmkvError) -> Answer:
        message, hint = error.message[:2_000], error.hint[:2_000]
        return Answer(ok=False, message=message, hint=hint, code=error.code, worker=self._worker_id)

    async def _answer(self, taken: TakenCommand, answer: Answer) -> None:
        """Said at once, or as soon as Redis is back, for as long as anybody may be listening."""
        backoff = Backoff()
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    try:
                        await self._ledger.commands.answer(self._worker_id, taken.id, answer)
                        break
                    except BrokerError as exc:
                        if not exc.is_passing:
                            raise
                    await backoff.pause()
        except (BrokerError, TimeoutError) as exc:
            logger.warning(
                "command %s is not answered: %s", taken.command.kind, exc, extra={"action": "broker_lost"}
            )
        if taken.command.kind == "drain" and answer.ok:  # last, for it ends this task
            self._worker.drain(taken.command.grace_s)

    # -- the commands

    async def _pause(self, _: Command) -> str:
        self._refuse_if_draining()
        was_paused = self._worker.state == "paused"
        await self._worker.pause()
        said = "was paused already" if was_paused else "is paused"
        return f"Worker {self._worker_id} {said}; it goes on with {_jobs(self._worker.num_held)}."

    async def _resume(self, _: Command) -> str:
        self._refuse_if_draining()
        was_paused = self._worker.state == "paused"
        await self._worker.resume()
        return f"Worker {self._worker_id} {'takes jobs again' if was_paused else 'was not paused'}."

    async def _drain(self, command: Command) -> str:
        if self._worker.state == "draining":
            return f"Worker {self._worker_id} was draining already."
        grace_s = self._grace_s if command.grace_s is None else command.grace_s
        held = self._worker.num_held
        return f"Worker {self._worker_id} drains: {_jobs(held)} may take {grace_s:g} s, then its process ends."

    async def _pin(self, command: Command) -> str:
        is_new = await asyncio.to_thread(self._store.pin, command.snapshot)
        return f"Snapshot {command.snapshot} {'is' if is_new else 'was'} pinned{'' if is_new else ' already'}."

    async def _unpin(self, command: Command) -> str:
        was_pinned = await asyncio.to_thread(self._store.unpin, command.snapshot)
        return f"Snapshot {command.snapshot} {'is no longer' if was_pinned else 'was not'} pinned."

    async def _drop(self, command: Command) -> str:
        """Forgotten first: who asks for it from then on waits for a new prefill, and finds nothing half gone."""
        key = command.snapshot
        if not await asyncio.to_thread(self._store.holds, key):
            raise SnapshotMissing(f"The store at {self._store.path} has no snapshot {key!r}.")
        if not await self._ledger.jobs.drop_snapshot(key, force=command.force):
            raise CommandRefused(
                f"Runs that have not ended need snapshot {key}; it was not dropped.",
                hint="Wait for them or cancel them; by force, they prefill it again.",
            )
        await asyncio.to_thread(self._store.remove, key)
        return f"Snapshot {key} is dropped; who asks for its document next prefills it again."

    def _refuse_if_draining(self) -> None:
        if self._worker.state == "draining":
            raise CommandRefused(f"Worker {self._worker_id} is draining, and ends soon.")


def _jobs(count: int) -> str:
    return "no job" if count == 0 else "1 job" if count == 1 else f"{count} jobs"
