"""A producer, connected as the environment says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from swarmkv.cli import exits, output
from swarmkv.cli.exits import NoWorker
from swarmkv.producer import Producer, RunReport
from swarmkv.protocol.ledger import LiveWorker
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import Settings, load_settings


@asynccontextmanager
async def open_producer(settings: Settings | None = None) -> AsyncIterator[Producer]:
    """A producer on SWARMKV_REDIS_URL, or on the embedded broker. Raises ConfigError, BrokerError."""
    settings = settings or load_settings()
    async with Producer(redis_url(settings), settings) as producer:
        yield producer


async def require_worker(producer: Producer, model: str) -> None:
    """Raise NoWorker when no live worker serves `model`."""
    if not any(live.info.model == model for live in await producer.workers()):
        raise NoWorker(f"No worker for model {model!r} is alive.")


async def warn_of_no_worker(producer: Producer, model: str) -> None:
    """Say on stderr when nobody is there to do what was just accepted."""
    try:
        await require_worker(producer, model)
    except NoWorker as exc:
        output.note("warning: " + exc.message, exc.hint, style="yellow")


async def exit_code(producer: Producer, report: RunReport) -> int:
    """The code of a report; NO_WORKER, said on stderr, when it is late because nobody is there to work on it."""
    if report.error is not None and report.error.code == "deadline_exceeded":
        try:
            await require_worker(producer, report.model)
        except NoWorker as exc:
            output.print_error(exc)
            return exits.NO_WORKER
    return exits.for_report(report)


def worker_rows(workers: Iterable[LiveWorker]) -> list[dict[str, Any]]:
    """Live workers as the documents of `workers --json`."""
    return [
        {
            "id": live.info.id,
            "role": live.info.role,
            "state": live.info.state,
            "pid": live.info.pid,
            "host": live.info.host,
            "model": live.info.model,
            "slots": live.info.slots,
            "slots_used": live.info.slots_used,
            "last_beat_age_s": live.last_beat_age_s,
        }
        for live in workers
    ]
