"""What the screen shows: one reading of everything, plain data. `None`: not known, because nobody reported it.

These names are the keys of `swarmkv top --once --json`, which docs/top.md documents: renaming one breaks scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swarmkv.protocol.commands import CommandKind
from swarmkv.protocol.messages import RunReport


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Jobs of one role and model: `waiting` for a worker, `deferred` until later, `running` on one.

    The oldest of those that wait has waited for `oldest_s`.
    """

    role: str
    model: str
    waiting: int
    running: int
    oldest_s: float | None = None
    deferred: int = 0

    @property
    def id(self) -> str:
        return f"{self.role}:{self.model}"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A live worker. `state` is running, paused or draining; `cells` of its KV cache."""

    id: str
    role: str
    model: str
    state: str
    host: str
    pid: int
    slots: int
    slots_used: int
    cells: int
    cells_used: int | None
    residents: int | None
    tokens_per_s: float | None
    rss_bytes: int | None
    age_s: float | None
    beat_age_s: float
    device: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run; `open` of its branches have not ended. `age_s` is counted from its submission."""

    id: str
    name: str
    state: str
    model: str
    branches: int
    open: int
    age_s: float


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A snapshot in a store; `resident_in` so many workers, which need not restore it.

    `needed`: runs that have not ended need it. `problem`: why it cannot be used.
    """

    id: str
    models: tuple[str, ...]
    documents: tuple[str, ...]
    tokens: int
    size_bytes: int
    age_s: float
    unused_s: float
    hits: int
    pinned: bool
    needed: bool
    resident_in: int
    store: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all models, workers and stores.

    `saved_tokens`, `saved_ms`: prefill that sharing avoided since counting began; `saved_share`: of all prefill
    that agents without it would have done, 0 to 1. `dead`: branches that were given up.
    """

    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    saved_tokens: int = 0
    saved_ms: float = 0.0
    saved_share: float = 0.0
    store_bytes: int = 0
    store_limit_bytes: int = 0
    runs: int = 0
    runs_open: int = 0
    branches_open: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class AlertRow:
    """What somebody should look at. `severity` is critical, warning or notice; `code` is stable."""

    code: str
    severity: str
    subject: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything at one moment, `taken_ms` of Redis' clock. `runs` are the newest of `totals.runs`."""

    taken_ms: int
    totals: Totals = Totals()
    alerts: tuple[AlertRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    runs: tuple[RunRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()


class Source(Protocol):
    """Where readings come from, and where actions go. Every method may raise SwarmkvError."""

    @property
    def address(self) -> str:
        """Which Redis this is, without its password."""

    async def read(self) -> Reading:
        """Everything, now."""

    async def watch(self, run_id: str) -> RunReport:
        """A run now, with the end of what its running branches have said."""

    async def cancel(self, run_id: str) -> str:
        """End what is open of a run; what came of it, as a sentence."""

    async def retry(self, run_id: str) -> str:
        """Queue again what failed of a run; what came of it, as a sentence."""

    async def command(self, kind: CommandKind, target: str) -> str:
        """Have a worker, or who keeps a snapshot, carry something out; what was answered, as a sentence."""
