"""What the ledger is to be, as plain Python without Redis: the states of work, and what each call does to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from swarmkv.protocol import keys
from swarmkv.protocol.messages import FINAL_BRANCH_STATES

LEASE_S = 30
STALE_S = 5
MAX_REBUILDS = 2
MAX_SOLO_CRASHES = 2


@dataclass
class Work(ABC):
    """A branch or a prefill: in one state, held by one worker at most."""

    state: str
    worker: str = ""
    leased_until_s: int = 0
    starts_s: int = 0
    ready_s: int = 0
    crashes: int = 0

    @property
    @abstractmethod
    def job(self) -> str:
        """Its arq job id."""


@dataclass
class Prefix(Work):
    id: str = ""
    generation: int = 0

    @property
    def job(self) -> str:
        return keys.prefill_job(self.id, self.generation)


@dataclass
class Branch(Work):
    run: str = ""
    index: int = 0
    attempt: int = 0
    solo_crashes: int = 0
    is_solo: bool = False
    rebuilds: int = 0
    text: str = ""

    @property
    def job(self) -> str:
        return keys.branch_job(self.run, self.index, self.attempt)

    @property
    def member(self) -> str:
        return f"{self.run}:{self.index}"

    @property
    def is_open(self) -> bool:
        return self.state not in FINAL_BRANCH_STATES


@dataclass
class Run:
    prefix: Prefix
    branches: list[Branch]
    opened_s: int
    deadline_s: int
    is_cancelled: bool = False  # as a whole

    @property
    def is_open(self) -> bool:
        return any(branch.is_open for branch in self.branches)

    @property
    def state(self) -> str:
        """Of a run that has ended."""
        states = {branch.state for branch in self.branches}
        if states == {"done"}:
            return "done"
        if self.is_cancelled or states == {"cancelled"}:
            return "cancelled"
        return "completed_with_errors" if "done" in states else "failed"


@dataclass
class LedgerModel:
    """The whole ledger. Every method is one call that reached Redis; answers are those that Redis must give."""

    now_s: int
    runs: dict[str, Run] = field(default_factory=dict)
    prefixes: dict[str, Prefix] = field(default_factory=dict)
    alive_until_s: dict[str, int] = field(default_factory=dict)
    swept_s: int | None = None
    unqueued: set[str] = field(default_factory=set)  # jobs that were taken out of arq's queue behind our back
    undefined: set[str] = field(default_factory=set)  # jobs whose definition was deleted
    dead: set[str] = field(default_factory=set)  # branches in the dead-letter list

    # -- what there is

    def branches(self) -> Iterator[Branch]:
        for run in self.runs.values():
            yield from run.branches

    def work(self, state: str) -> list[Work]:
        """All branches and prefills in a state."""
        return [item for item in (*self.branches(), *self.prefixes.values()) if item.state == state]

    def waiting(self, prefix: Prefix) -> list[Branch]:
        """The branches that wait for a prefix."""
        runs = [run for run in self.runs.values() if run.prefix is prefix]
        return [branch for run in runs for branch in run.branches if branch.state == "waiting"]

    def takeable(self, kind: type[Work]) -> list[Work]:
        """What a worker of a role may be given now."""
        queued = [item for item in self.work("queued") if isinstance(item, kind)]
        return [item for item in queued if item.starts_s <= self.now_s and item.job not in self.unqueued]

    def held(self, worker: str, job: str) -> Work | None:
        """The work of a job if this worker may still end it."""
        for item in self.work("running"):
            if item.job == job and item.worker == worker:
                return item
        return None

    # -- producers

    def submit(self, run_id: str, prefix_id: str, count: int, deadline_s: int) -> None:
        prefix = self.prefixes.setdefault(prefix_id, Prefix("absent", id=prefix_id))
        branches = [Branch("new", run=run_id, index=index) for index in range(count)]
        self.runs[run_id] = Run(prefix, branches, self.now_s, self.now_s + deadline_s)
        for branch in branches:
            self._wait_or_queue(branch)

    def cancel(self, run_id: str, names: Sequence[str]) -> list[str] | None:
        """The names of what was open; None when the run had ended. All of it without names."""
        run = self.runs[run_id]
        if not run.is_open:
            return None
        run.is_cancelled = run.is_cancelled or not names
        return self._end_open(run, "cancelled", names)

    def retry(self, run_id: str, states: Sequence[str]) -> list[Branch]:
        run = self.runs[run_id]
        chosen = [branch for branch in run.branches if branch.state in states]
        if chosen and not run.is_open:
            run.opened_s, run.deadline_s = self.now_s, self.now_s + run.deadline_s - run.opened_s
            run.is_cancelled = False
        for branch in chosen:
            branch.text, branch.solo_crashes, branch.rebuilds = "", 0, 0
            self.dead.discard(branch.member)
            self._wait_or_queue(branch)
        return chosen

    # -- workers

    def beat(self, worker: str, jobs: Sequence[str]) -> list[str]:
        self.alive_until_s[worker] = self.now_s + LEASE_S
        lost = []
        for job in jobs:
            if (item := self.held(worker, job)) is None:
                lost.append(job)
            else:
                item.leased_until_s = self.now_s + LEASE_S
        return lost

    def leave(self, worker: str) -> int:
        self.alive_until_s.pop(worker, None)
        jobs = [item.job for item in self.work("running") if item.worker == worker]
        return self.hand_back(worker, jobs, delay_s=0)

    def take(self, worker: str, kind: type[Work], jobs: Sequence[str], *, limit: int, held: int) -> None:
        """What Redis gave must be what it may give; which of them is Redis' choice."""
        takeable = {item.job: item for item in self.takeable(kind)}
        assert set(jobs) <= set(takeable), "work was given away that is not queued"
        assert len(jobs) == len(set(jobs)) <= limit
        suspects = {job for job, item in takeable.items() if isinstance(item, Branch) and item.is_solo}
        if suspects & set(jobs):
            assert len(jobs) == 1
            assert held == 0
        elif not suspects:
            assert len(jobs) == min(limit, len(takeable)), "work was left lying"
        for job in jobs:
            item = takeable[job]
            item.state, item.worker, item.leased_until_s = "running", worker, self.now_s + LEASE_S

    def finish(self, worker: str, job: str, state: str, text: str) -> bool:
        branch = self.held(worker, job)
        if not isinstance(branch, Branch):
            return False
        branch.state, branch.text = state, text
        return True

    def hand_back(self, worker: str, jobs: Sequence[str], delay_s: int) -> int:
        items = [item for job in jobs if (item := self.held(worker, job)) is not None]
        for item in items:
            self._queue(item, delay_s)
        return len(items)

    def rebuild(self, worker: str, job: str, generation: int) -> str:
        branch = self.held(worker, job)
        if not isinstance(branch, Branch):
            return "refused"
        prefix = self.runs[branch.run].prefix
        if prefix.state == "ready" and prefix.generation == generation:
            prefix.state = "absent"
        branch.rebuilds += 1
        if branch.rebuilds > MAX_REBUILDS:
            self._park(branch)
            return "failed"
        return self._wait_or_queue(branch)

    def register(self, worker: str, job: str) -> bool:
        prefix = self.held(worker, job)
        if not isinstance(prefix, Prefix):
            return False
        prefix.state, prefix.crashes = "ready", 0
        for branch in self.waiting(prefix):
            self._queue(branch)
        return True

    def fail_prefill(self, worker: str, job: str) -> bool:
        prefix = self.held(worker, job)
        if not isinstance(prefix, Prefix):
            return False
        for branch in self.waiting(prefix):
            branch.state = "failed"
        prefix.state = "absent"
        return True

    def forget(self, prefix_id: str) -> None:
        if self.prefixes[prefix_id].state == "ready":
            self.prefixes[prefix_id].state = "absent"

    def drop(self, prefix_id: str, force: bool) -> bool:
        prefix = self.prefixes.get(prefix_id)
        if prefix is None or prefix.state != "ready":
            return True
        if not force and any(run.is_open and run.prefix is prefix for run in self.runs.values()):
            return False
        prefix.state = "absent"
        return True

    # -- repair

    def sweep(self) -> tuple[int, int, int]:
        running = self.work("running")
        if self.swept_s is not None and self.now_s - self.swept_s > LEASE_S / 2:
            for item in running:
                if item.leased_until_s <= self.now_s:
                    item.leased_until_s = self.now_s + LEASE_S
        self.swept_s = self.now_s
        expired = [item for item in running if item.leased_until_s <= self.now_s]
        for item in expired:
            self._recover(item)
        late = [run for run in self.runs.values() if run.is_open and run.deadline_s <= self.now_s]
        for run in late:
            self._end_open(run, "failed")
        return len(expired), len(late), self._requeue()

    def _recover(self, item: Work) -> None:
        is_dead = self.alive_until_s.get(item.worker, 0) <= self.now_s
        if isinstance(item, Prefix):
            item.crashes += is_dead
            if item.crashes > MAX_SOLO_CRASHES:
                item.crashes = 0
                for branch in self.waiting(item):
                    self._park(branch)
                item.state = "absent"
                return
        elif isinstance(item, Branch) and is_dead:
            item.solo_crashes += item.is_solo
            if item.solo_crashes >= MAX_SOLO_CRASHES:
                self._park(item)
                return
            item.crashes += 1
            item.is_solo = item.crashes >= 2
        self._queue(item)

    def _requeue(self) -> int:
        count = 0
        for item in self.work("queued"):
            if self.now_s - item.ready_s < STALE_S:
                continue
            item.ready_s = self.now_s
            if item.job in self.unqueued | self.undefined:
                self.unqueued.discard(item.job)
                self.undefined.discard(item.job)
                item.starts_s = self.now_s
                count += 1
        return count

    # -- steps that calls share

    def _queue(self, item: Work, delay_s: int = 0) -> None:
        if isinstance(item, Prefix):
            item.generation += 1
        elif isinstance(item, Branch) and item.state != "waiting":
            item.attempt += 1  # a branch that waits has its attempt already
        item.state, item.worker, item.ready_s, item.starts_s = "queued", "", self.now_s, self.now_s + delay_s

    def _wait_or_queue(self, branch: Branch) -> str:
        prefix = self.runs[branch.run].prefix
        if prefix.state == "ready":
            self._queue(branch)
            return "ready"
        branch.attempt += 1
        branch.state, branch.worker = "waiting", ""
        if prefix.state == "absent":
            self._queue(prefix)
        return "waiting"

    def _end_open(self, run: Run, state: str, names: Sequence[str] = ()) -> list[str]:
        ended = [branch for branch in run.branches if branch.is_open and (not names or str(branch.index) in names)]
        for branch in ended:
            branch.state = state
        if run.prefix.state in ("queued", "running") and not self.waiting(run.prefix):
            run.prefix.state = "absent"
        return [str(branch.index) for branch in ended]

    def _park(self, branch: Branch) -> None:
        branch.state = "failed"
        self.dead.add(branch.member)
