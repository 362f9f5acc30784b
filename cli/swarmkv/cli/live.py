"""Following a run: a picture that changes in place on a terminal, plain lines anywhere else.

Both are drawn on stderr, so that stdout holds results alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarmkv.cli import output
from swarmkv.cli.render import milliseconds, seconds
from swarmkv.cli.text import clean_line, tail
from swarmkv.producer import RunHandle
from swarmkv.producer.view import BranchView, RunView
from swarmkv.protocol.events import (
    BranchDone,
    BranchRestarted,
    BranchStarted,
    Event,
    PrefillDone,
    PrefillProgress,
    RunWarning,
)
from swarmkv.protocol.messages import BranchResult, RunReport

_FRAMES_PER_S = 12
_BAR_COLUMNS = 40
_OTHER_LINES = 6  # of a frame, beside the branches
_SIGNS = {
    "waiting": ("○", "dim"),
    "queued": ("○", "dim"),
    "running": ("●", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cancelled": ("✗", "yellow"),
}


async def follow(run: RunHandle, *, keep_frame: bool = False) -> RunReport:
    """Show a run until it ends.

    `keep_frame` leaves the last picture standing. Raises what the run's events raise.
    """
    console = output.stderr()
    view = RunView.of(await run.report())
    if console.is_terminal:
        await _follow_live(run, view, console, keep_frame)
    else:
        await _follow_lines(run, view, console)
    return await run.report()


async def stream_json(run: RunHandle) -> RunReport:
    """Every event as a JSON line, then the report as the last one, under the type `report`."""
    async for event in run.events():
        output.print_json_line(event.model_dump(mode="json"))
    report = await run.report()
    output.print_json_line({"type": "report", **report.model_dump(mode="json")})
    return report


async def wait(run: RunHandle) -> RunReport:
    """Wait for the end of a run, with a sign of life on a terminal."""
    console = output.stderr()
    if not console.is_terminal:
        return await run.results()
    with console.status(Text(f"run {run.id}: waiting for its answers")):
        return await run.results()


async def _follow_live(run: RunHandle, view: RunView, console: Console, keep_frame: bool) -> None:
    started = time.monotonic()

    def frame() -> RenderableType:
        return render_frame(view, console.width, console.height, time.monotonic() - started)

    with Live(frame(), console=console, auto_refresh=False, transient=not keep_frame) as live:
        async with _ticking(live, frame):
            async for event in run.events():
                view.apply(event)
        live.update(frame(), refresh=True)


@contextlib.asynccontextmanager
async def _ticking(live: Live, frame: object) -> AsyncIterator[None]:
    assert callable(frame)

    async def tick() -> None:
        while True:
            live.update(frame(), refresh=True)
            await asyncio.sleep(1 / _FRAMES_PER_S)

    task = asyncio.create_task(tick(), name="redraw")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def render_frame(view: RunView, width: int, height: int, elapsed_s: float) -> RenderableType:
    """The picture of a run on a terminal of `width` columns and `height` lines."""
    branches = list(view.branches.values())
    room = max(3, height - _OTHER_LINES)
    shown = branches if len(branches) <= room else _most_telling(branches, room)
    name_columns = min(24, max(len(branch.name) for branch in branches))
    lines: list[RenderableType] = [_prefill_line(view, elapsed_s), Text()]
    lines += [branch_line(branch, name_columns, width) for branch in shown]
    lines.append(Text())
    lines.append(_count_line(view, len(branches) - len(shown), elapsed_s))
    lines += [Text("! " + clean_line(warning), style="yellow") for warning in view.warnings[-2:]]
    return Group(*lines)


def branch_line(branch: BranchView, name_columns: int, width: int) -> Text:
    """A branch on one line: its state as a sign, its name, and the end of what it says."""
    sign, style = _SIGNS[branch.state]
    name = clean_line(branch.name)
    name = name if len(name) <= name_columns else name[: name_columns - 1] + "…"
    line = Text.assemble((sign, style), " ", (name.ljust(name_columns), "bold"), "  ")
    room = max(0, width - len(line) - 1)
    if branch.state in ("waiting", "queued"):
        waits_for = "the prefill" if branch.state == "waiting" else "a worker"
        line.append(f"waits for {waits_for}", style="dim")
    elif branch.result is not None:
        line.append_text(_result_text(branch.result, room))
    else:
        line.append(tail(clean_line(branch.text), room))
    line.truncate(width - 1, overflow="ellipsis")
    line.no_wrap = True
    return line


def _result_text(result: BranchResult, room: int) -> Text:
    if result.error is not None:
        return Text(clean_line(result.error.message), style="red")
    head = f"{result.tokens.generated} tokens  "
    return Text.assemble((head, "green"), (tail(clean_line(result.text), room - len(head)), "dim"))


def _most_telling(branches: list[BranchView], room: int) -> list[BranchView]:
    """As many as fit: running ones first, then those that wait, then finished ones; in their own order."""
    order = {"running": 0, "failed": 1, "queued": 2, "waiting": 2, "cancelled": 3, "done": 3}
    chosen = {branch.name for branch in sorted(branches, key=lambda b: order[b.state])[:room]}
    return [branch for branch in branches if branch.name in chosen]


def _prefill_line(view: RunView, elapsed_s: float) -> RenderableType:
    prefill = view.prefill
    line = Table.grid(padding=(0, 2))
    title = Text("prefill", style="bold")
    if prefill.is_done:
        took = "reused a snapshot" if prefill.is_reused else milliseconds(prefill.prefill_ms)
        note = Text(f"{prefill.total:,} tokens  {took}", style="green")
    elif prefill.total:
        note = Text(f"{prefill.done:,} / {prefill.total:,} tokens")
    else:
        note = Text(f"waits for a worker  {seconds(elapsed_s)}", style="dim")
    bar = ProgressBar(
        total=max(1, prefill.total), completed=prefill.done, width=_BAR_COLUMNS, finished_style="green"
    )
    line.add_row(title, bar, note)
    return line


def _count_line(view: RunView, num_hidden: int, elapsed_s: float) -> Text:
    line = Text(f"{view.num_finished} of {len(view.branches)} answers  {seconds(elapsed_s)}", style="dim")
    if num_hidden:
        line.append(f"  ({num_hidden} branches not shown)")
    return line


async def _follow_lines(run: RunHandle, view: RunView, console: Console) -> None:
    quarter = 0
    async for event in run.events():
        view.apply(event)
        if isinstance(event, PrefillProgress):
            before, quarter = quarter, 4 * event.done_tokens // max(1, event.total_tokens)
            if quarter <= before:
                continue
        if line := event_line(event):
            console.print(Text(line), soft_wrap=True)


def event_line(event: Event) -> str | None:
    """An event in a line of plain text; None for those that are too many to print."""
    match event:
        case PrefillProgress():
            return f"prefill: {event.done_tokens:,} of {event.total_tokens:,} tokens"
        case PrefillDone(reused=True):
            return f"prefill: none, a snapshot of {event.tokens:,} tokens is reused"
        case PrefillDone():
            return f"prefill: {event.tokens:,} tokens in {milliseconds(event.prefill_ms)}"
        case BranchStarted():
            return f"{clean_line(event.branch)}: started by {clean_line(event.worker)}"
        case BranchRestarted():
            return f"{clean_line(event.branch)}: starts again ({clean_line(event.reason)})"
        case BranchDone():
            return f"{clean_line(event.branch)}: {_ending(event)}"
        case RunWarning():
            return "warning: " + clean_line(f"{event.message} {event.hint}")
        case _:
            return None


def _ending(event: BranchDone) -> str:
    result = event.result
    if result.error is not None:  # the report behind the last line says it in full
        return f"{event.state} ({clean_line(result.error.code)})"
    took = f" in {milliseconds(result.timings_ms.total)}" if result.timings_ms.total else ""
    return f"{event.state}, {result.tokens.generated} tokens{took}"
