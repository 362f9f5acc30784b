"""`swarmkv dead`: branches that were given up, for people to look at, put back or forget."""

from __future__ import annotations

import asyncio
import datetime
from typing import Annotated, Any

import typer

from swarmkv.cli import output, render
from swarmkv.cli.client import open_producer
from swarmkv.cli.options import Json
from swarmkv.producer import DeadBranch

app = typer.Typer(help="List, show, retry and drop branches that were given up.")
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="An entry's id, or RUN/BRANCH; see `swarmkv dead ls`.")]


@app.command("ls")
def ls(as_json: Json = False) -> None:
    """List the dead-letter entries, the newest first."""
    entries = asyncio.run(_listing())
    if as_json:
        output.print_json([_document(entry) for entry in entries])
        return
    columns = ("entry", "branch", "model", "reason", "attempts", "crashes alone", "when")
    render.table(output.stdout(), columns, map(_row, entries), left=4)


@app.command("show")
def show(entry: Entry, as_json: Json = False) -> None:
    """Show why a branch was given up."""
    found = asyncio.run(_find(entry))
    if as_json:
        output.print_json(_document(found))
        return
    rows = [(name, _shown(name, value)) for name, value in _document(found).items()]
    render.table(output.stdout(), ("field", "value"), rows, left=2)


@app.command("retry")
def retry(entry: Entry, as_json: Json = False) -> None:
    """Queue the branch again; its run is open again."""
    found, names = asyncio.run(_retry(entry))
    if as_json:
        output.print_json({"run_id": found.run_id, "retried": list(names)})
    elif names:
        output.note(f"{found.path} is queued again.", f"swarmkv results {found.run_id} --follow shows its answer.")
    else:
        output.note(f"{found.path} is not failed any more; its entry is dropped.")


@app.command("drop")
def drop(
    entries: Annotated[list[str] | None, typer.Argument(metavar="[ENTRY]...", help="What to forget.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget every entry.")] = False,
    as_json: Json = False,
) -> None:
    """Forget entries; their branches stay failed."""
    if everything == bool(entries):
        raise typer.BadParameter("give entries, or --all")
    dropped = asyncio.run(_drop(entries))
    if as_json:
        output.print_json({"dropped": dropped})
    else:
        output.note("Dropped 1 entry." if dropped == 1 else f"Dropped {dropped:,} entries.")


async def _listing() -> list[DeadBranch]:
    async with open_producer() as producer:
        return await producer.dead()


async def _find(entry: str) -> DeadBranch:
    async with open_producer() as producer:
        return await producer.dead_branch(entry)


async def _retry(entry: str) -> tuple[DeadBranch, tuple[str, ...]]:
    async with open_producer() as producer:
        found = await producer.dead_branch(entry)
        names = await producer.run(found.run_id).retry(branches=[found.name])
        if not names:
            await producer.drop_dead([found])
        return found, names


async def _drop(entries: list[str] | None) -> int:
    """All, for none named."""
    async with open_producer() as producer:
        chosen = [await producer.dead_branch(entry) for entry in entries] if entries else await producer.dead()
        return await producer.drop_dead(chosen)


def _document(entry: DeadBranch) -> dict[str, Any]:
    fields = entry.model_dump(mode="json", exclude={"error", "name"})
    return {"id": entry.id, "branch": entry.name, **fields, **entry.error.model_dump(mode="json")}


def _row(entry: DeadBranch) -> list[render.Cell]:
    return [
        entry.id,
        entry.name,
        entry.model,
        entry.error.code,
        render.count(entry.attempts),
        render.count(entry.solo_crashes),
        _date(entry.dead_ms),
    ]


def _shown(name: str, value: object) -> str:
    return _date(value) if name == "dead_ms" and isinstance(value, int) else str(value)


def _date(value_ms: int) -> str:
    return datetime.datetime.fromtimestamp(value_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
