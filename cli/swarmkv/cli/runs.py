"""`swarmkv runs`, `show`, `results`, `cancel`, `retry`: what became of what was enqueued."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from typing import Annotated

import typer

from swarmkv.cli import exits, live, output, render
from swarmkv.cli.client import open_producer, warn_of_no_worker
from swarmkv.cli.interrupt import Interrupted, run_abandonable
from swarmkv.cli.options import Deadline, Json, RunId
from swarmkv.producer import RunReport
from swarmkv.protocol.ledger import RunSummary


def runs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List the runs that are kept."""
    found = asyncio.run(_listing(limit))
    if as_json:
        output.print_json([dataclasses.asdict(summary) for summary in found])
        return
    columns = ("run", "name", "state", "model", "branches", "open", "created")
    render.table(output.stdout(), columns, map(_run_row, found), left=4)


def show(run: RunId, as_json: Json = False) -> None:
    """Show where a run stands, without the answers: of running branches the last words."""
    report = asyncio.run(_so_far(run))
    if as_json:
        output.print_json(report.model_dump(mode="json"))
        return
    console = output.stdout()
    render.summary(console, report)
    render.branch_table(console, report)
    render.last_words(console, report)


def results(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Follow the run to its end first.")] = False,
    as_json: Json = False,
) -> None:
    """Print the answers of a run, and what running branches have said so far.

    Exit code 3 while some are missing.
    """
    try:
        report = run_abandonable(_followed(run, as_json=as_json) if follow else _so_far(run))
    except Interrupted:
        raise typer.Exit(exits.UNFINISHED) from None
    if not (follow and as_json):
        _print(report, as_json=as_json)
    raise typer.Exit(exits.for_report(report))


def cancel(
    run: RunId,
    branches: Annotated[
        list[str] | None, typer.Argument(metavar="[BRANCH]...", help="All, if none is given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Cancel what is still open of a run, or some of its branches."""
    was_open, report = asyncio.run(_cancel(run, branches or []))
    what = f"{', '.join(branches)} of run {run}" if branches else f"Run {run}"
    if as_json:
        output.print_json({"run_id": run, "cancelled": was_open, "state": report.state})
    elif was_open:
        output.note(f"{what}: cancelled." if branches else f"{what} is cancelled.")
    else:
        output.note(f"{what} had already ended: {report.state}.")


def retry(
    run: RunId,
    failed: Annotated[bool, typer.Option("--failed", help="Only what failed, not what was cancelled.")] = False,
    deadline: Deadline = None,
    as_json: Json = False,
) -> None:
    """Queue again what failed or was cancelled of a run; answers that are there stay."""
    names, report = asyncio.run(_retry(run, only_failed=failed, deadline_s=deadline))
    if as_json:
        output.print_json({"run_id": run, "retried": list(names), "state": report.state})
    elif names:
        count = "1 branch is" if len(names) == 1 else f"{len(names):,} branches are"
        output.note(f"{count} queued again.", f"swarmkv results {run} --follow shows the answers.")
    else:
        what = "failed" if failed else "failed or cancelled"
        output.note(f"Run {run} has no {what} branch: there is nothing to retry.")


def _print(report: RunReport, *, as_json: bool) -> None:
    if as_json:
        output.print_json(report.model_dump(mode="json"))
    else:
        render.full_report(output.stdout(), report)


async def _listing(limit: int) -> list[RunSummary]:
    async with open_producer() as producer:
        return await producer.runs(limit)


async def _so_far(run: str) -> RunReport:
    async with open_producer() as producer:
        return await producer.run(run).so_far()


async def _followed(run: str, *, as_json: bool) -> RunReport:
    async with open_producer() as producer:
        handle = producer.run(run)
        return await (live.stream_json(handle) if as_json else live.follow(handle))


async def _cancel(run: str, branches: list[str]) -> tuple[bool, RunReport]:
    async with open_producer() as producer:
        handle = producer.run(run)
        return await handle.cancel(*branches), await handle.report()


async def _retry(run: str, *, only_failed: bool, deadline_s: float | None) -> tuple[tuple[str, ...], RunReport]:
    async with open_producer() as producer:
        handle = producer.run(run)
        names = await handle.retry(only_failed=only_failed, deadline_s=deadline_s)
        report = await handle.report()
        if names:
            await warn_of_no_worker(producer, report.model)
        return names, report


def _run_row(summary: RunSummary) -> list[render.Cell]:
    created = datetime.datetime.fromtimestamp(summary.created_ms / 1_000).astimezone()
    return [
        summary.run_id,
        summary.name,
        render.state_text(summary.state),
        summary.model,
        render.count(summary.branches),
        render.count(summary.open),
        created.strftime("%Y-%m-%d %H:%M:%S"),
    ]
