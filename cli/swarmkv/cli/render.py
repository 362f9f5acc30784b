"""Reports as text and tables. Plain columns without lines where the output is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from swarmkv.cli.text import clean, clean_line
from swarmkv.protocol.messages import BranchReport, ErrorInfo, RunReport

Cell = Text | str

STATE_STYLES = {
    "done": "green",
    "running": "cyan",
    "prefilling": "cyan",
    "failed": "bold red",
    "completed_with_errors": "yellow",
    "cancelled": "yellow",
}
NOTHING = "-"
_BRANCH_COLUMNS = (
    *("branch", "state", "queue", "restore", "TTFT", "decode tok/s"),
    *("reused", "recomputed", "prompt", "answer"),
)


def put(console: Console, drawn: RenderableType) -> None:
    """Print `drawn`; where the output is no terminal, without the spaces that fill its last column."""
    if console.is_terminal:
        console.print(drawn)
        return
    with console.capture() as capture:
        console.print(drawn)
    for line in capture.get().rstrip("\n").split("\n"):
        console.print(Text(line.rstrip()), soft_wrap=True)


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: int = 1) -> None:
    """A table on `console`; the first `left` columns are aligned left, numbers behind them right."""
    drawn = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for index, column in enumerate(columns):
        is_left = index < left
        drawn.add_column(column, justify="left" if is_left else "right", no_wrap=not is_left)
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(clean_line(cell)) for cell in row))
    put(console, drawn)


def state_text(state: str) -> Text:
    """A run's or a branch's state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def milliseconds(value: float) -> str:
    """A duration with as many digits as matter: `0.42 ms`, `38 ms`, `4.2 s`."""
    if value <= 0:
        return NOTHING
    if value < 10:
        return f"{value:.2f} ms"
    if value < 1_000:
        return f"{value:.0f} ms"
    return seconds(value / 1_000)


def seconds(value: float) -> str:
    """A duration in seconds, or in minutes from two of them on."""
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def count(value: int) -> str:
    return f"{value:,}"


def tokens_per_second(branch: BranchReport) -> str:
    """The speed behind the first token, which belongs to the prompt's batch."""
    decoded = branch.tokens.generated - 1
    if decoded < 1 or branch.timings_ms.decode <= 0:
        return NOTHING
    return f"{decoded / branch.timings_ms.decode * 1_000:.1f}"


def answers(console: Console, report: RunReport) -> None:
    """Every branch's name and answer, or what went wrong with it."""
    for branch in report.branches:
        console.print(_heading(branch))
        body = _error_text(branch.error) if branch.error else Text(clean(branch.text.strip()))
        if body:
            console.print(Padding(body, (0, 0, 0, 2)) if console.is_terminal else body)
        console.print()


def summary(console: Console, report: RunReport) -> None:
    """The run in a line or two, and its own error if it has one."""
    line = Text.assemble(
        "run ", (report.run_id, "bold"), " ", state_text(report.state), f" {clean_line(report.name)}"
    )
    line.append(f" · {count(report.document_tokens)} tokens · {len(report)} branches")
    line.append(f" · {milliseconds(report.wall_ms)}")
    console.print(line)
    if report.error:
        console.print(_error_text(report.error))


def branch_table(console: Console, report: RunReport) -> None:
    """What each branch took: times from the start of its job, the queue before it."""
    table(console, _BRANCH_COLUMNS, map(_branch_row, report.branches), left=2)


def _branch_row(branch: BranchReport) -> list[Cell]:
    times, tokens = branch.timings_ms, branch.tokens
    measured = [
        milliseconds(times.queue),
        "resident" if tokens.reused and times.restore <= 0 else milliseconds(times.restore),
        milliseconds(times.first_token),
        tokens_per_second(branch),
    ]
    counted = [tokens.reused, tokens.recomputed, tokens.prompt, tokens.generated]
    return [branch.name, state_text(branch.state), *measured, *map(count, counted)]


def _heading(branch: BranchReport) -> Text:
    heading = Text(clean_line(branch.name), style="bold cyan")
    if branch.state != "done":
        heading.append(f" ({branch.state})", style=STATE_STYLES.get(branch.state, "dim"))
    elif branch.finish_reason == "length":
        heading.append(" (cut at max_tokens)", style="dim")
    if branch.attempts > 1:
        heading.append(f" (attempt {branch.attempts})", style="dim")
    return heading


def _error_text(error: ErrorInfo) -> Text:
    text = Text(clean_line(error.message), style="red")
    if error.hint:
        text.append(" " + clean_line(error.hint), style="dim")
    return text


def verdict(problem: str) -> Text:
    """`ok`, or what is wrong."""
    return Text(clean_line(problem), style="bold red") if problem else Text("ok", style="green")


def facts(console: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    """Names with their values, and what must be known to read them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", style="bold")
    grid.add_column(style="dim")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    put(console, grid)
