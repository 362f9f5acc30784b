"""Reports as text and tables. Plain columns without lines where the output is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from swarmkv.cli.text import clean, clean_line, tail
from swarmkv.monitor.styles import STATE_STYLES
from swarmkv.protocol.messages import BranchReport, ErrorInfo, RunReport

Cell = Text | str

NOTHING = "-"
_LEAST_WORDS = 20  # characters of a branch's last words, however narrow the terminal
# Columns of the branch table that are left out on terminals of fewer columns than this.
_NEEDED_WIDTH = {"prompt": 96, "answer": 96, "state": 76, "queue": 76, "restore": 66}


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
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for index, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if index < left else "right"
        # On a narrow terminal the first column alone gives way.
        drawn.add_column(column, justify=justify, no_wrap=index > 0, overflow="ellipsis")
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


def answers(console: Console, report: RunReport, prompts: Mapping[str, str] | None = None) -> None:
    """Every branch's name, its prompt if that is known, and its answer or what went wrong with it.

    What went wrong with the whole run, and so ended its branches, is for `summary` to say: once.
    """
    for branch in report.branches:
        console.print(_heading(branch))
        if prompts and branch.name in prompts:
            asked = Text(clean_line(prompts[branch.name]), style="dim italic")
            console.print(Padding(asked, (0, 0, 0, 2)) if console.is_terminal else asked)
        body = _error_text(branch.error) if branch.error else Text(clean(branch.text.strip()))
        if branch.error is not None and branch.error == report.error:
            body = Text()
        if body:
            console.print(Padding(body, (0, 0, 0, 2)) if console.is_terminal else body)
        console.print()


def full_report(console: Console, report: RunReport) -> None:
    """Answers, then what they took."""
    answers(console, report)
    branch_table(console, report)
    summary(console, report)


def summary(console: Console, report: RunReport) -> None:
    """The run in a line or two, and its own error if it has one."""
    line = Text.assemble(
        "run ", (report.run_id, "bold"), " ", state_text(report.state), f" {clean_line(report.name)}"
    )
    branches = "1 branch" if len(report) == 1 else f"{count(len(report))} branches"
    line.append(f" · {count(report.document_tokens)} tokens · {branches}")
    line.append(f" · {milliseconds(report.wall_ms)}")
    console.print(line)
    if report.error:
        console.print(_error_text(report.error))


def last_words(console: Console, report: RunReport) -> None:
    """A line for each branch that is decoded now: the end of what it has said so far."""
    for branch in report.branches:
        if branch.state == "running" and branch.text.strip():
            line = Text.assemble((clean_line(branch.name), "bold cyan"), ": ")
            line.append(tail(clean_line(branch.text), max(_LEAST_WORDS, console.width - line.cell_len - 1)))
            console.print(line, soft_wrap=True)


def branch_table(console: Console, report: RunReport) -> None:
    """What each branch took: times from the start of its job, the queue before it."""
    rows = [_branch_cells(branch) for branch in report.branches]
    width = console.width if console.is_terminal else max(_NEEDED_WIDTH.values())
    shown = [name for name in rows[0] if _NEEDED_WIDTH.get(name, 0) <= width]
    table(console, shown, ([row[name] for name in shown] for row in rows), left=2 if "state" in shown else 1)


def _branch_cells(branch: BranchReport) -> dict[str, Cell]:
    times, tokens = branch.timings_ms, branch.tokens
    has_started = times.total > 0
    is_resident = tokens.reused > 0 and times.restore <= 0
    return {
        "branch": branch.name,
        "state": state_text(branch.state),
        "queue": "< 1 ms" if has_started and times.queue < 1 else milliseconds(times.queue),
        "restore": "resident" if is_resident else milliseconds(times.restore),
        "TTFT": milliseconds(times.first_token),
        "decode tok/s": tokens_per_second(branch),
        "reused": count(tokens.reused),
        "recomputed": count(tokens.recomputed),
        "prompt": count(tokens.prompt),
        "answer": count(tokens.generated),
    }


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
