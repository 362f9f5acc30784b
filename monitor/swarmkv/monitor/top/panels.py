"""The panels: which rows of a reading each shows, in which columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from rich.text import Text

from swarmkv.monitor.styles import STATE_STYLES
from swarmkv.monitor.top import figures
from swarmkv.monitor.top.columns import Cell, Column, Row
from swarmkv.monitor.top.reading import QueueRow, Reading, RunRow, SnapshotRow, WorkerRow
from swarmkv.protocol.messages import BranchReport, BranchTimings, RunReport, TokenCounts
from swarmkv.protocol.text import clean_line

_STATE_WORDS = {"completed_with_errors": "with errors"}
_BAR_COLUMNS = 6
KEY_COLUMNS = 12  # of a snapshot's key: enough to tell one from another


@dataclass(frozen=True, slots=True)
class Panel(Generic[Row]):
    """`rows` takes them out of a reading; `found_in` is what the filter looks at."""

    title: str
    columns: tuple[Column[Row], ...]
    rows: Callable[[Reading], Sequence[Row]]
    found_in: Callable[[Row], str]
    sorted_by: str
    nothing: str  # what is said in place of rows

    def column(self, title: str) -> Column[Row]:
        """The column of this title."""
        return next(column for column in self.columns if column.title == title)


def state_text(state: str) -> Text:
    """A state in its colour."""
    return Text(_STATE_WORDS.get(state, clean_line(state)), style=STATE_STYLES.get(state, ""))


def _strong(number: int, style: str = "bold") -> Text:
    """A number that is seen when it is not zero."""
    return Text(figures.count(number), style=style if number else "dim")


def _progress(run: RunRow) -> Text:
    ended = run.branches - run.open
    done = ended / run.branches if run.branches else 0.0
    style = "green" if not run.open else "cyan"
    return Text.assemble((figures.bar(done, _BAR_COLUMNS), style), f" {f'{ended:,}/{run.branches:,}':>11}")


def _slots(worker: WorkerRow) -> Text:
    if not worker.slots:
        return Text("busy" if worker.slots_used else "idle", style="cyan" if worker.slots_used else "dim")
    return Text(figures.of(worker.slots_used, worker.slots), style="cyan" if worker.slots_used else "dim")


def _cells(worker: WorkerRow) -> str:
    if worker.cells_used is None or not worker.cells:
        return figures.count(worker.cells or None)
    return f"{worker.cells_used:,}/{worker.cells:,}"


def _names(values: Sequence[str]) -> str:
    return clean_line(", ".join(values)) or figures.UNKNOWN


def _standing(snapshot: SnapshotRow) -> Text:
    """What keeps it, or what is wrong with it."""
    if snapshot.problem:
        return Text("unusable", style="bold red")
    return Text("pinned", style="cyan") if snapshot.pinned else Text("needed" if snapshot.needed else "")


def _number(
    title: str, cell: Callable[[Row], Cell], key: Callable[[Row], Any], width: int, rank: int
) -> Column[Row]:
    """A column that is looked at for its largest number."""
    return Column(title, cell, key, width, rank, right=True, descending=True)


QUEUES: Panel[QueueRow] = Panel(
    title="Queues",
    columns=(
        Column("queue", lambda row: row.role, lambda row: row.role, 8),
        Column("model", lambda row: clean_line(row.model), lambda row: row.model),
        _number("waiting", lambda row: _strong(row.waiting, "bold yellow"), lambda row: row.waiting, 9, rank=0),
        _number("running", lambda row: _strong(row.running, "bold cyan"), lambda row: row.running, 9, rank=1),
        _number("oldest", lambda row: figures.age(row.oldest_s), lambda row: row.oldest_s, 8, rank=2),
    ),
    rows=lambda reading: reading.queues,
    found_in=lambda row: f"{row.role} {row.model}",
    sorted_by="queue",
    nothing="No queue yet: no worker ever announced a model. `swarmkv up` starts some.",
)

WORKERS: Panel[WorkerRow] = Panel(
    title="Workers",
    columns=(
        Column("worker", lambda row: clean_line(row.id), lambda row: row.id),
        Column("role", lambda row: row.role, lambda row: row.role, 7),
        Column("state", lambda row: state_text(row.state), lambda row: row.state, 8, 2),
        Column("model", lambda row: clean_line(row.model), lambda row: row.model, 10, 5),
        _number("slots", _slots, lambda row: row.slots_used, 7, rank=0),
        _number("cells", _cells, lambda row: row.cells_used or row.cells, 13, rank=6),
        _number("tok/s", lambda row: figures.rate(row.tokens_per_s), lambda row: row.tokens_per_s, 7, rank=1),
        _number("memory", lambda row: figures.size(row.rss_bytes), lambda row: row.rss_bytes, 9, rank=4),
        _number("resident", lambda row: figures.count(row.residents), lambda row: row.residents, 8, rank=8),
        _number("up", lambda row: figures.age(row.age_s), lambda row: row.age_s, 7, rank=7),
        _number("beat", lambda row: figures.age(row.beat_age_s), lambda row: row.beat_age_s, 6, rank=3),
        Column("pid", lambda row: str(row.pid), lambda row: row.pid, 8, 9, right=True),
        Column("host", lambda row: clean_line(row.host), lambda row: row.host, 14, 10),
        Column("device", lambda row: clean_line(row.device) or "-", lambda row: row.device, 8, 11),
        Column("version", lambda row: clean_line(row.version) or "-", lambda row: row.version, 8, 12),
    ),
    rows=lambda reading: reading.workers,
    found_in=lambda row: f"{row.id} {row.role} {row.state} {row.model} {row.host}",
    sorted_by="worker",
    nothing="No worker is alive. `swarmkv up` or `swarmkv worker all` starts one.",
)

RUNS: Panel[RunRow] = Panel(
    title="Runs",
    columns=(
        Column("run", lambda row: row.id, lambda row: row.id, 12, 2),
        Column("name", lambda row: clean_line(row.name), lambda row: row.name.lower(), least=20),
        Column("state", lambda row: state_text(row.state), lambda row: row.state, 11),
        Column("ended", _progress, lambda row: row.branches - row.open, 18, 3, descending=True),
        _number("open", lambda row: _strong(row.open), lambda row: row.open, 6, rank=4),
        Column("age", lambda row: figures.age(row.age_s), lambda row: row.age_s, 7, 0, right=True),
        Column("model", lambda row: clean_line(row.model), lambda row: row.model, 12, 5),
    ),
    rows=lambda reading: reading.runs,
    found_in=lambda row: f"{row.id} {row.name} {_STATE_WORDS.get(row.state, row.state)} {row.state} {row.model}",
    sorted_by="age",
    nothing="No run is kept. `swarmkv enqueue FILE -p PROMPT` makes one.",
)

SNAPSHOTS: Panel[SnapshotRow] = Panel(
    title="Snapshots",
    columns=(
        Column("snapshot", lambda row: row.id[:KEY_COLUMNS], lambda row: row.id, KEY_COLUMNS),
        Column("models", lambda row: _names(row.models), lambda row: row.models),
        _number("tokens", lambda row: figures.count(row.tokens), lambda row: row.tokens, 8, rank=1),
        _number("size", lambda row: figures.size(row.size_bytes), lambda row: row.size_bytes, 9, rank=0),
        _number("hits", lambda row: _strong(row.hits), lambda row: row.hits, 6, rank=2),
        _number("resident", lambda row: _strong(row.resident_in), lambda row: row.resident_in, 9, rank=4),
        Column("state", _standing, lambda row: _standing(row).plain, 8, 3),
        Column("unused", lambda row: figures.age(row.unused_s), lambda row: row.unused_s, 7, 5, right=True),
        Column("age", lambda row: figures.age(row.age_s), lambda row: row.age_s, 7, 6, right=True),
        Column("document", lambda row: _names(row.documents)[:KEY_COLUMNS], lambda row: row.documents, 12, 7),
        Column("store", lambda row: clean_line(row.store), lambda row: row.store, 30, 8),
    ),
    rows=lambda reading: reading.snapshots,
    found_in=lambda row: " ".join((row.id, *row.models, *row.documents, _standing(row).plain, row.store)),
    sorted_by="unused",
    nothing="No worker reports a snapshot.",
)

PANELS: tuple[Panel[Any], ...] = (QUEUES, WORKERS, RUNS, SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch of the run that is looked at; `number` is its place in the run."""

    number: int
    branch: BranchReport

    @property
    def id(self) -> str:
        return self.branch.name

    @property
    def tokens(self) -> TokenCounts:
        return self.branch.tokens

    @property
    def times(self) -> BranchTimings:
        return self.branch.timings_ms


def branch_rows(report: RunReport) -> list[BranchRow]:
    """The branches of a run in their order."""
    return [BranchRow(number, branch) for number, branch in enumerate(report.branches, 1)]


def said(row: BranchRow) -> str:
    """What a branch says, or what went wrong with it, on one line."""
    error = row.branch.error
    return clean_line(f"{error.message} {error.hint}" if error else row.branch.text)


def _milliseconds(value: float) -> str:
    return figures.UNKNOWN if value <= 0 else f"{value:.0f} ms" if value < 1_000 else figures.age(value / 1_000)


def _restore(row: BranchRow) -> str:
    is_resident = row.tokens.reused > 0 and row.times.restore <= 0
    return "resident" if is_resident else _milliseconds(row.times.restore)


def _answer_tokens(row: BranchRow) -> str:
    return figures.count(row.tokens.generated) if row.tokens.generated else figures.UNKNOWN


BRANCHES: Panel[BranchRow] = Panel(
    title="Branches",
    columns=(
        Column("#", lambda row: str(row.number), lambda row: row.number, 4, 3, right=True),
        Column("branch", lambda row: clean_line(row.branch.name), lambda row: row.branch.name.lower(), least=16),
        Column("state", lambda row: state_text(row.branch.state), lambda row: row.branch.state, 9),
        _number("try", lambda row: str(row.branch.attempts), lambda row: row.branch.attempts, 3, rank=4),
        _number("queue", lambda row: _milliseconds(row.times.queue), lambda row: row.times.queue, 8, rank=5),
        _number("restore", _restore, lambda row: row.times.restore, 8, rank=6),
        _number(
            "TTFT", lambda row: _milliseconds(row.times.first_token), lambda row: row.times.first_token, 8, rank=1
        ),
        _number("total", lambda row: _milliseconds(row.times.total), lambda row: row.times.total, 8, rank=2),
        _number("reused", lambda row: figures.count(row.tokens.reused), lambda row: row.tokens.reused, 8, rank=7),
        _number("answer", _answer_tokens, lambda row: row.tokens.generated, 7, rank=1),
        Column("worker", lambda row: clean_line(row.branch.worker or "-"), lambda row: row.branch.worker, 16, 8),
    ),
    rows=lambda _reading: (),
    found_in=lambda row: f"{row.branch.name} {row.branch.state} {row.branch.text}",
    sorted_by="#",
    nothing="This run has no branch that fits the filter.",
)
