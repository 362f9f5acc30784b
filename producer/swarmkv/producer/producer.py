"""Submitting runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from arq.connections import ArqRedis

from swarmkv.producer.handle import RunHandle
from swarmkv.producer.validate import (
    BranchLike,
    checked_branches,
    checked_deadline_ms,
    checked_document,
    checked_name,
    checked_template,
    checked_text,
)
from swarmkv.protocol.broker import connect
from swarmkv.protocol.commands import Answer, Command
from swarmkv.protocol.errors import BrokerError, SwarmkvError
from swarmkv.protocol.events import RunWarning
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, Limits, LiveWorker, RunSummary
from swarmkv.protocol.ledger.commands import DEFAULT_TIMEOUT_S
from swarmkv.protocol.messages import BranchSpec, DeadBranch, PrefixSpec, RunSpec, Sampling, StoreInfo
from swarmkv.protocol.place import redis_url as find_redis
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.protocol.tracing import open_tracing

MAX_RUN_NAME_BYTES = 200


class Producer:
    """Submits runs to one Redis; an async context manager that owns its connections.

    async with Producer() as producer:
        run = await producer.submit(text, ["What is claimed?", ("risks", "Which risks are named?")])
        report = await run.results()
    """

    def __init__(self, redis_url: str | None = None, settings: Settings | None = None) -> None:
        self._settings = settings or load_settings()
        url = redis_url or find_redis(self._settings)
        self._redis: ArqRedis = connect(url, timeout_s=self._settings.redis_timeout_s)
        self._ledger = Ledger(self._redis, max_events=self._settings.max_events)
        self._tracing = open_tracing(self._settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; handles of this producer stop working."""
        if self._tracing.is_on:
            await asyncio.to_thread(self._tracing.close)
        await self._redis.aclose(close_connection_pool=True)

    async def submit(
        self,
        document: str | bytes,
        branches: Sequence[BranchLike],
        *,
        model: str = "default",
        system: str | None = None,
        template: str | None = None,
        name: str | None = None,
        document_name: str | None = None,
        sampling: Sampling | None = None,
        deadline_s: float | None = None,
        any_model: bool = False,
    ) -> RunHandle:
        """Accept a run: when this returns it is durable in Redis, and it will end.

        `branches` are prompts, (name, prompt) pairs, mappings or BranchSpecs; `sampling` is the default of
        those that carry none. `template` replaces the model's own: text with {document} and then {prompt}. `name`
        and `document_name` are for people to find the run by. Raises InvalidDocument, InvalidBranch, UnknownModel,
        Overloaded, BrokerError; nothing was accepted then.
        """
        data = checked_document(document, self._settings)
        specs = checked_branches(branches, sampling, self._settings)
        checked_name(model, "The model alias")
        prefix = PrefixSpec(
            model=model,
            document=digest_bytes(data),
            system=checked_text(system, "The system text", self._settings.max_prompt_bytes),
            template=checked_template(template, self._settings.max_prompt_bytes),
        )
        run_id = secrets.token_hex(6)
        spec = RunSpec(
            run_id=run_id,
            name=checked_text(name, "The run's name", MAX_RUN_NAME_BYTES) or run_id,
            prefix=prefix,
            document_bytes=len(data),
            document_name=checked_text(document_name, "The document's name", MAX_RUN_NAME_BYTES) or "",
        )
        deadline_ms = self._settings.deadline_ms if deadline_s is None else checked_deadline_ms(deadline_s)
        await self._accept(spec, specs, data, deadline_ms, any_model)
        return RunHandle(self._ledger, run_id, self._settings, await self._warn_of_missing_workers(run_id, model))

    async def _accept(
        self, spec: RunSpec, branches: Sequence[BranchSpec], document: bytes, deadline_ms: int, any_model: bool
    ) -> None:
        """The first span of the run's trace; workers go on from it."""
        span = self._tracing.start(
            "swarmkv.enqueue",
            "producer",
            {
                "swarmkv.run.id": spec.run_id,
                "swarmkv.run.branches": len(branches),
                "swarmkv.document.size_bytes": len(document),
                "gen_ai.request.model": spec.prefix.model,
            },
        )
        try:
            await self._ledger.runs.submit(
                spec.model_copy(update={"traceparent": span.traceparent}),
                branches,
                document,
                deadline_ms=deadline_ms,
                ttl_ms=self._settings.result_ttl_ms,
                any_model=any_model,
                limits=Limits.of(self._settings),
            )
        except SwarmkvError as exc:
            span.end(error=exc.code)
            raise
        span.end()

    def run(self, run_id: str) -> RunHandle:
        """A handle on a run submitted earlier, here or elsewhere."""
        return RunHandle(self._ledger, run_id, self._settings)

    async def runs(self, limit: int = 20) -> list[RunSummary]:
        """The newest runs first."""
        return await self._ledger.runs.listing(limit)

    async def dead(self) -> list[DeadBranch]:
        """The dead-letter list: branches that were given up, the newest first. Raises BrokerError."""
        return await self._ledger.recovery.dead()

    async def dead_branch(self, entry: str) -> DeadBranch:
        """One entry, by its id or as RUN/BRANCH. Raises EntryNotFound, BrokerError."""
        return await self._ledger.recovery.dead_branch(entry)

    async def drop_dead(self, entries: Sequence[DeadBranch]) -> int:
        """Forget entries; their branches stay failed. Returns how many were there. Raises BrokerError."""
        return await self._ledger.recovery.drop(entries)

    async def workers(self) -> list[LiveWorker]:
        """Workers with a live heartbeat."""
        return await self._ledger.fleet.workers()

    async def tell(self, to: str, command: Command, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        """Tell workers something, as to pause or to pin a snapshot, and wait for their answer: CommandLedger.send.

        Raises WorkerNotFound, CommandUnanswered, CommandRefused, InvalidInput, BrokerError.
        """
        return await self._ledger.commands.send(to, command, timeout_s=timeout_s)

    async def stores(self) -> list[StoreInfo]:
        """Snapshot stores, as their workers last said."""
        return await self._ledger.stores.all()

    async def _warn_of_missing_workers(self, run_id: str, model: str) -> tuple[RunWarning, ...]:
        """The run is accepted: a Redis that goes away only now is no reason to call it refused."""
        try:
            warnings = await self._worker_warnings(model)
            await self._ledger.jobs.emit({run_id: list(warnings)})
        except BrokerError:
            return ()
        return warnings

    async def _worker_warnings(self, model: str) -> tuple[RunWarning, ...]:
        serving = [live.info for live in await self.workers() if live.info.model == model]
        missing = {"prefill", "branch"} - {info.role for info in serving if info.state == "running"}
        paused = {info.role for info in serving if info.state == "paused"}
        return tuple(_missing(role, model, is_paused=role in paused) for role in sorted(missing, reverse=True))


def _missing(role: str, model: str, *, is_paused: bool) -> RunWarning:
    if is_paused:
        return RunWarning(
            message=f"Every {role} worker for model {model!r} is paused; the run waits for one.",
            hint=f"`swarmkv workers resume {role}` lets them take jobs; the run ends by its deadline in any case.",
        )
    return RunWarning(
        message=f"No {role} worker for model {model!r} is alive; the run waits for one.",
        hint=f"Start one with `swarmkv worker {role}`; the run ends by its deadline in any case.",
    )
