"""`swarmkv worker` runs one; the list of those that are alive."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Any

import typer

from swarmkv.cli import exits, output, render
from swarmkv.cli.client import open_producer, worker_rows
from swarmkv.cli.logs import set_up_logs
from swarmkv.cli.models import parse_model
from swarmkv.cli.options import LogFormatOption, ServedModel
from swarmkv.protocol.extras import needing
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import load_settings


class Role(StrEnum):
    """What a worker does; `all` does both on one loaded model."""

    PREFILL = "prefill"
    BRANCH = "branch"
    ALL = "all"


def worker(
    role: Annotated[Role, typer.Argument(help="What it does; all: both, on one loaded model.")],
    model: ServedModel = None,
    slots: Annotated[int | None, typer.Option(help="Branches decoded at the same time.")] = None,
    threads: Annotated[int | None, typer.Option(help="0: all physical cores.")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of 127.0.0.1 for this worker's own /metrics and /healthz."),
    ] = None,
    log_format: LogFormatOption = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log every job.")] = False,
) -> None:
    """Run a worker until Ctrl-C or SIGTERM.

    What it cannot finish within its grace time, it hands back.
    """
    metrics_address = None if metrics_port is None else str(metrics_port)
    settings = load_settings(slots=slots, threads=threads, log_format=log_format, metrics_address=metrics_address)
    set_up_logs(as_json=settings.log_format == "json", verbose=verbose)
    settings = settings.model_copy(update={"redis_url": redis_url(settings)})
    choice = parse_model(model or settings.model)
    run_worker = _import_run_worker()
    raise typer.Exit(run_worker(role.value, choice.alias, choice.ref, settings))


def workers(as_json: bool) -> None:
    """List the workers that are alive; exit code 5 when none is."""
    rows = asyncio.run(_rows())
    if as_json:
        output.print_json(rows)
    elif rows:
        columns = ("worker", "role", "state", "model", "host", "pid", "slots", "last beat")
        render.table(output.stdout(), columns, map(_row, rows), left=5)
    else:
        output.note("No worker is alive.", exits.NoWorker.default_hint)
    if not rows:
        raise typer.Exit(exits.NO_WORKER)


def _import_run_worker() -> Any:
    """The worker's entry point; imported late, for a plain installation has no engine."""
    with needing("A worker", "worker"):
        from swarmkv.workers.main import run_worker
    return run_worker


async def _rows() -> list[dict[str, Any]]:
    async with open_producer() as producer:
        return worker_rows(await producer.workers())


def _row(row: dict[str, Any]) -> list[render.Cell]:
    slots = f"{row['slots_used']}/{row['slots']}" if row["slots"] else render.NOTHING
    beat = f"{row['last_beat_age_s']:.1f} s ago"
    return [row["id"], row["role"], row["state"], row["model"], row["host"], str(row["pid"]), slots, beat]
