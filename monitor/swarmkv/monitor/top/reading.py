"""What the screen shows: one reading of everything, plain data. `None`: not known, because nobody reported it.

These names are the keys of `swarmkv top --once --json`, which docs/top.md documents: renaming one breaks scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swarmkv.protocol.messages import RunReport


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Jobs of one role and model: `waiting` for a worker, `running` on one; `oldest_s` has waited the longest."""

    role: str
    model: str
    waiting: int
    running: int
    oldest_s: float | None = None

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
    """A snapshot in the store; `resident_in` so many workers, which need not restore it."""

    id: str
    model: str
    document: str
    tokens: int
    size_bytes: int
    age_s: float
    unused_s: float
    hits: int
    pinned: bool
    resident_in: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all models and workers.

    `saved_tokens`, `saved_ms`: prefill that sharing avoided; `saved_share`: of all prefill that agents without it
    would have done, 0 to 1.
    """

    tokens_per_s: float | None = None
    saved_tokens: int | None = None
    saved_ms: float | None = None
    saved_share: float | None = None
    store_bytes: int | None = None
    store_budget_bytes: int | None = None
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything at one moment, `taken_ms` of Redis' clock. `runs` are the newest of `num_runs`."""

    taken_ms: int
    totals: Totals = Totals()
    alerts: tuple[str, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    runs: tuple[RunRow, ...] = ()
    num_runs: int = 0
    snapshots: tuple[SnapshotRow, ...] = ()


class Source(Protocol):
    """Where readings come from, and where actions go. Every method may raise SwarmkvError."""

    @property
    def address(self) -> str:
        """Which Redis this is, without its password."""

    @property
    def can_command(self) -> bool:
        """Do workers take commands (pause, resume, drain)?"""

    async def read(self) -> Reading:
        """Everything, now."""

    async def watch(self, run_id: str) -> RunReport:
        """A run now, with the end of what its running branches have said."""

    async def cancel(self, run_id: str) -> str:
        """End what is open of a run; what came of it, as a sentence."""

    async def retry(self, run_id: str) -> str:
        """Queue again what failed of a run; what came of it, as a sentence."""

    async def command(self, worker_id: str, kind: str) -> str:
        """Have a worker carry out `pause`, `resume` or `drain`; what it answered, as a sentence."""
