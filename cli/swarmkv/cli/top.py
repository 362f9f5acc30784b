"""`swarmkv top`: like htop, for queues."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from swarmkv.cli import exits, output
from swarmkv.cli.control import asker
from swarmkv.cli.interrupt import Interrupted, run_abandonable
from swarmkv.cli.options import finite
from swarmkv.monitor.top import plain
from swarmkv.monitor.top.app import App
from swarmkv.monitor.top.reading import Reading
from swarmkv.monitor.top.source import LedgerSource
from swarmkv.monitor.top.terminal import Terminal, is_terminal
from swarmkv.protocol.broker import connect, shown
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import load_settings

_PIPE_COLUMNS = 120
_BY_SIGNAL = 128  # and its number: how shells say that a signal ended a program


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame as text, and end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", callback=finite, help="Time between two readings.")
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: one JSON document on stdout, and nothing else.")
    ] = False,
) -> None:
    """Show queues, workers, runs and snapshots, live; ? shows the keys."""
    if as_json and not once:
        raise exits.UsageFault("--json prints one document, and top does not end.", hint="Add --once.")
    if once:
        _print(asyncio.run(_reading()), as_json=as_json)
        return
    if not is_terminal(sys.stdin, sys.stdout):
        raise exits.UsageFault(
            "top needs a terminal for its screen and its keys, and this is none.",
            hint="swarmkv top --once prints one frame, with --json as a document.",
        )
    try:
        run_abandonable(_shown(interval))
    except Interrupted as exc:
        raise typer.Exit(_BY_SIGNAL + exc.number) from None


def _print(reading: Reading, *, as_json: bool) -> None:
    if as_json:
        output.print_json(plain.document(reading))
        return
    columns = shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns
    sys.stdout.write(plain.text(reading, columns))


async def _reading() -> Reading:
    async with _source() as source:
        return await source.read()


async def _shown(interval_s: float) -> None:
    async with _source() as source:
        with Terminal(sys.stdin, sys.stdout) as terminal:
            await App(source, terminal, interval_s).run()


@asynccontextmanager
async def _source() -> AsyncIterator[LedgerSource]:
    """Raises ConfigError, BrokerError."""
    settings = load_settings()
    url = redis_url(settings)
    redis = connect(url, timeout_s=settings.redis_timeout_s, max_connections=8)
    try:
        yield LedgerSource(redis, settings, address=shown(url), by=f"top: {asker()}")
    finally:
        await redis.aclose(close_connection_pool=True)
