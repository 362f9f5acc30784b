"""`swarmkv health`: is the worker of this container alive? By its own heartbeat in Redis, for health checks."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Annotated

import typer

from swarmkv.cli import exits, output
from swarmkv.cli.client import worker_rows
from swarmkv.cli.options import Json, finite
from swarmkv.cli.text import clean_line
from swarmkv.cli.workers import Role
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import BrokerError, SwarmkvError
from swarmkv.protocol.ledger import Ledger, LiveWorker
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Question:
    """Which workers must beat: one by its id, else those of this host, of certain roles."""

    worker: str | None
    role: Role | None
    host: str = field(default_factory=socket.gethostname)

    @property
    def roles(self) -> frozenset[str]:
        """Each of these must be there; empty: any."""
        if self.role is None:
            return frozenset()
        return frozenset({"prefill", "branch"} if self.role is Role.ALL else {self.role.value})

    def missing(self, found: list[LiveWorker]) -> str:
        """Who does not beat, in words; empty when all do."""
        absent = sorted(self.roles - {live.info.role for live in found})
        if found and not absent:
            return ""
        kind = " and no ".join(f"{role} worker" for role in absent) or "worker"
        whom = f"called {self.worker!r}" if self.worker is not None else f"of host {self.host!r}"
        return f"no {kind} {whom} has a live heartbeat"


def health(
    role: Annotated[Role | None, typer.Option(help="The role that must be there; all: both.")] = None,
    worker: Annotated[str | None, typer.Option(metavar="ID", help="This worker, of any host.")] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", callback=finite, help="Longest wait for Redis.")
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Tell by its heartbeat whether the worker of this host is alive: exit code 0, else 1.

    For the health check of a container, whose host name is its own. What is wrong is said on stdout.
    """
    question, found = Question(worker, role), []
    try:
        found = asyncio.run(_answers(question, load_settings(redis_timeout_s=timeout), timeout))
        problem = question.missing(found)
    except SwarmkvError as exc:  # the exit code 2 of others means something else to container runtimes
        problem = str(exc)
    if as_json:
        document = {"healthy": not problem, "problem": problem or None, "workers": worker_rows(found)}
        output.print_json(document)
    else:
        for line in [f"unhealthy: {problem}"] if problem else map(_line, found):
            output.stdout().print(clean_line(line), soft_wrap=True)
    raise typer.Exit(exits.FAILED if problem else exits.DONE)


async def _answers(question: Question, settings: Settings, timeout_s: float) -> list[LiveWorker]:
    """The live workers that the question is about. Raises BrokerError, ConfigError."""
    redis = connect(redis_url(settings), timeout_s=timeout_s, max_connections=1)
    fleet = Ledger(redis, max_events=settings.max_events).fleet
    try:
        async with asyncio.timeout(timeout_s):
            if question.worker is not None:
                found = await fleet.workers_named([question.worker])
            else:
                found = await fleet.workers_on(question.host)
    except TimeoutError as exc:
        raise BrokerError(f"Redis has not answered for {timeout_s:g} s.") from exc
    finally:
        await redis.aclose(close_connection_pool=True)
    return [live for live in found if not question.roles or live.info.role in question.roles]


def _line(live: LiveWorker) -> str:
    info = live.info
    slots = f", {info.slots_used} of {info.slots} slots used" if info.slots else ""
    return (
        f"healthy: {info.role} worker {info.id} serves {info.model!r}{slots}, "
        f"last beat {live.last_beat_age_s:.1f} s ago"
    )
