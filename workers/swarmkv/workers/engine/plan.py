"""Who gets cells, and what the next batch holds: plain data in, plain data out.

Cells are what everything competes for. A resident is a prefix that was restored once; its branches are forks
of it, which share its cells and reserve their own for the prompt and the longest answer:

    resident   ├───────── prefix ─────────┤
    branch     ┆       shared cells       ├─ prompt ─┼───── answer ─────┤   reserved when it is admitted
                                          0        fed    length     capacity
                                                    └pending┘ goes into the next batch

What is admitted always fits, so no branch runs out of cells halfway: one that does not fit yet waits, in
order of arrival, for others to end. Idle residents go when another document starts: attention looks at all
cells up to the last used one, so they would make every step dearer, and a restore costs less than a step.

A batch is filled in this order: one token of every answering branch; prompts, in chunks; one chunk of the
prefill. While anyone answers, the batch ends where one compute pass (n_ubatch) ends, so that a long prompt
or a prefill does not stall its neighbours.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from swarmkv.protocol.errors import BranchTooLong, EngineError, InvalidBranch, PrefixTooLong
from swarmkv.workers.engine.jobs import BranchJob, PrefillJob, Tokens

Job = BranchJob | PrefillJob


@dataclass(frozen=True, slots=True)
class Limits:
    """What the context offers. `n_positions`: the longest sequence, as trained or as n_ctx allows."""

    n_ctx: int
    n_positions: int
    n_batch: int
    n_ubatch: int
    slots: int
    residents: int
    can_prefill: bool

    def __post_init__(self) -> None:
        if self.slots > self.n_batch:
            raise ValueError(f"{self.slots} slots need a batch of as many rows, not {self.n_batch}.")


@dataclass(eq=False, slots=True)
class Resident:
    """A restored prefix: it stays in its sequence, to be forked."""

    snapshot: str
    sequence: int
    prefix_tokens: int
    forks: int = 0


@dataclass(eq=False, slots=True)
class Branch:
    """A running branch. `fed` tokens are in its cells; `tokens[fed:length]` still have to be decoded."""

    job: BranchJob
    sequence: int
    resident: Resident
    tokens: Tokens = field(init=False)  # prompt, then answer; room for the longest
    length: int = field(init=False)
    fed: int = 0
    is_suspect: bool = False  # was in a batch that failed: decoded alone until it is cleared

    def __post_init__(self) -> None:
        self.tokens = np.empty(_own_cells(self.job), np.int32)
        self.length = len(self.job.prompt)
        self.tokens[: self.length] = self.job.prompt

    @property
    def position(self) -> int:
        """Where the next token goes in the sequence."""
        return self.resident.prefix_tokens + self.fed

    @property
    def pending(self) -> int:
        return self.length - self.fed

    @property
    def generated(self) -> int:
        return self.length - len(self.job.prompt)

    @property
    def is_answering(self) -> bool:
        """Its prompt is decoded: it feeds its latest token, and nothing else."""
        return self.generated > 0 and self.pending == 1

    @property
    def is_full(self) -> bool:
        return self.generated == self.job.sampling.max_tokens

    @property
    def cells(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add a sampled token; it is pending."""
        self.tokens[self.length] = token
        self.length += 1

    def chunk(self, count: int) -> Tokens:
        """The next `count` pending tokens, a view."""
        return self.tokens[self.fed : self.fed + count]


@dataclass(eq=False, slots=True)
class Prefill:
    """The running prefill: a sequence from position 0, removed once it is exported."""

    job: PrefillJob
    sequence: int
    fed: int = 0
    is_suspect: bool = False

    @property
    def position(self) -> int:
        return self.fed

    @property
    def pending(self) -> int:
        return len(self.job.tokens) - self.fed

    @property
    def cells(self) -> int:
        return len(self.job.tokens)

    def chunk(self, count: int) -> Tokens:
        """The next `count` pending tokens, a view."""
        return self.job.tokens[self.fed : self.fed + count]


Task = Branch | Prefill


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of the batch that belong to one task."""

    task: Task
    count: int
    wants_logits: bool  # it is the end of what a branch has pending: the next token is sampled from it

    @classmethod
    def of(cls, task: Task, most: int) -> Rows:
        """Up to `most` pending rows of a task."""
        count = min(task.pending, most)
        return cls(task, count, isinstance(task, Branch) and count == task.pending)


@dataclass(frozen=True, slots=True)
class Admission:
    """A task that starts now. To do, in order: remove `evicted`, restore if `must_restore`, fork."""

    task: Task
    evicted: tuple[Resident, ...] = ()
    must_restore: bool = False


class Scheduler:
    """Residents, running tasks and waiting jobs of one context. Not thread-safe.

    It only keeps the books: who calls it makes the context do the same, and tells it with `drop` and `end`
    what went wrong.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.branches: list[Branch] = []  # in order of admission
        self.prefill: Prefill | None = None
        self.residents: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self.waiting: deque[Job] = deque()  # in order of arrival
        self._free_sequences = _sequence_pools(limits)
        self._most_rows = limits.n_batch

    @property
    def has_work(self) -> bool:
        return bool(self.branches or self.prefill or self.waiting)

    @property
    def tasks(self) -> list[Task]:
        return [*self.branches, *([self.prefill] if self.prefill else [])]

    @property
    def free_cells(self) -> int:
        """Cells that nobody holds or has reserved."""
        kept = sum(resident.prefix_tokens for resident in self.residents.values())
        return self.limits.n_ctx - kept - sum(task.cells for task in self.tasks)

    def submit(self, job: Job) -> None:
        """Queue a job; BranchTooLong, PrefixTooLong, InvalidBranch or EngineError if it can never run."""
        if isinstance(job, BranchJob):
            self._check_branch(job)
        else:
            self._check_prefill(job)
        self.waiting.append(job)

    def withdraw(self, job_id: str) -> Job | None:
        """Take a job back that has not started."""
        for job in self.waiting:
            if job.id == job_id:
                self.waiting.remove(job)
                return job
        return None

    def running(self, job_id: str) -> Task | None:
        return next((task for task in self.tasks if task.job.id == job_id), None)

    def admit(self) -> Admission | None:
        """Start the next job that may: None when all others must wait. Call until it returns None.

        In order of arrival. A job that waits for a slot lets the other kind pass; one that waits for cells
        lets nobody pass, or a long document would wait for ever behind short ones.
        """
        blocked: set[type[Job]] = {PrefillJob} if self.prefill else set()
        for job in self.waiting:
            if type(job) in blocked or not self._has_slot_for(job):
                blocked.add(type(job))
                if len(blocked) == 2:
                    return None
                continue
            evicted = self._make_room(job)
            if evicted is None:
                return None
            self.waiting.remove(job)
            return self._start(job, evicted)
        return None

    def next_rows(self) -> list[Rows]:
        """The rows of the next batch, at most n_batch; empty when nothing runs."""
        suspects = [task for task in self.tasks if task.is_suspect]
        if suspects:
            return [Rows.of(suspects[0], self._most_rows)]
        answering = [branch for branch in self.branches if branch.is_answering][: self._most_rows]
        rows = [Rows.of(branch, 1) for branch in answering]
        room = self._rows_in_all(len(answering)) - len(answering)
        for branch in self.branches:
            if room and not branch.is_answering:
                rows.append(Rows.of(branch, room))
                room -= rows[-1].count
        if self.prefill and room and not any(branch.job.solo for branch in self.branches):
            rows.append(Rows.of(self.prefill, min(room, self.limits.n_ubatch)))
        return rows

    def advance(self, rows: list[Rows]) -> None:
        """The batch was decoded."""
        for row in rows:
            row.task.fed += row.count
            # Not before all of it is decoded: what fails may be further on.
            row.task.is_suspect = row.task.is_suspect and row.task.pending > 0
        self._most_rows = self.limits.n_batch

    def shrink(self, rows: list[Rows]) -> Resident | None:
        """The batch found no cells: returns an idle resident to remove, else halves the next batch.

        Cells are reserved, so this is rare: a sliding window's own pool can be short for a moment.
        """
        idle = self._idle_residents()
        if idle:
            self.drop(idle[0])
            return idle[0]
        self._most_rows = max(1, sum(row.count for row in rows) // 2)
        return None

    def end(self, task: Task) -> None:
        """A task is over; its sequence must be removed from the context, too."""
        if isinstance(task, Branch):
            self.branches.remove(task)
            task.resident.forks -= 1
            self._free_sequences[Branch].append(task.sequence)
        else:
            self.prefill = None
            self._free_sequences[Prefill].append(task.sequence)

    def drop(self, resident: Resident) -> None:
        """Forget a resident without forks; its sequence must be removed from the context, too."""
        del self.residents[resident.snapshot]
        self._free_sequences[Resident].append(resident.sequence)

    def _check_branch(self, job: BranchJob) -> None:
        limits, own = self.limits, _own_cells(job)
        if limits.slots == 0:
            raise EngineError("This engine runs no branches.")
        if len(job.prompt) == 0:
            raise InvalidBranch("The prompt has no tokens.", hint="Write a prompt.")
        most = min(limits.n_ctx, limits.n_positions)
        if job.prefix_tokens + own > most:
            raise BranchTooLong(
                f"{job.prefix_tokens} document tokens, {len(job.prompt)} prompt tokens and max_tokens "
                f"{job.sampling.max_tokens} are {job.prefix_tokens + own}; the context holds {most}.",
                hint="Lower max_tokens, shorten the prompt, or raise SWARMKV_N_CTX if the model takes it.",
            )

    def _check_prefill(self, job: PrefillJob) -> None:
        most = min(self.limits.n_ctx, self.limits.n_positions)
        if not self.limits.can_prefill:
            raise EngineError("This engine prefills no documents.")
        if len(job.tokens) == 0:
            raise EngineError("A prefix has no tokens.")
        if len(job.tokens) > most:
            raise PrefixTooLong(
                f"The document is {len(job.tokens)} tokens; the context holds {most}.",
                hint="Shorten the document, or raise SWARMKV_N_CTX if the model takes it.",
            )

    def _has_slot_for(self, job: Job) -> bool:
        if isinstance(job, PrefillJob):
            return self.prefill is None
        is_alone = not self.branches
        if job.solo:
            return is_alone
        return len(self.branches) < self.limits.slots and not (self.branches and self.branches[0].job.solo)

    def _make_room(self, job: Job) -> tuple[Resident, ...] | None:
        """Evict idle residents that no waiting branch wants, and as few wanted ones as the job needs.

        None, and nothing is evicted, if the job does not fit even then.
        """
        resident = self.residents.get(job.snapshot) if isinstance(job, BranchJob) else None
        lacks_sequence = isinstance(job, BranchJob) and resident is None and not self._free_sequences[Resident]
        missing = _cells_to_start(job, resident) - self.free_cells
        wanted = {job.snapshot for job in self.waiting if isinstance(job, BranchJob)}
        evicted: list[Resident] = []
        for other in self._idle_residents():
            is_needed = missing > 0 or (lacks_sequence and not evicted)
            if other is not resident and (is_needed or other.snapshot not in wanted):
                evicted.append(other)
                missing -= other.prefix_tokens
        if missing > 0 or (lacks_sequence and not evicted):
            return None
        for other in evicted:
            self.drop(other)
        return tuple(evicted)

    def _idle_residents(self) -> list[Resident]:
        """Residents without forks: those that no waiting branch wants first, then least recently used."""
        wanted = {job.snapshot for job in self.waiting if isinstance(job, BranchJob)}
        idle = [resident for resident in self.residents.values() if resident.forks == 0]
        return sorted(idle, key=lambda resident: resident.snapshot in wanted)

    def _start(self, job: Job, evicted: tuple[Resident, ...]) -> Admission:
        if isinstance(job, PrefillJob):
            self.prefill = Prefill(job, self._free_sequences[Prefill].pop())
            return Admission(self.prefill, evicted)
        resident = self.residents.get(job.snapshot)
        must_restore = resident is None
        if resident is None:
            sequence = self._free_sequences[Resident].pop()
            resident = Resident(job.snapshot, sequence, job.prefix_tokens)
            self.residents[job.snapshot] = resident
        self.residents.move_to_end(job.snapshot)
        resident.forks += 1
        branch = Branch(job, self._free_sequences[Branch].pop(), resident)
        self.branches.append(branch)
        return Admission(branch, evicted, must_restore)

    def _rows_in_all(self, answering: int) -> int:
        """Rows of the next batch: whole compute passes around the answering rows, or all the batch takes."""
        if not answering:
            return self._most_rows
        passes = answering // self.limits.n_ubatch + 1
        return min(passes * self.limits.n_ubatch, self._most_rows)


def _own_cells(job: BranchJob) -> int:
    return len(job.prompt) + job.sampling.max_tokens


def _cells_to_start(job: Job, resident: Resident | None) -> int:
    if isinstance(job, PrefillJob):
        return len(job.tokens)
    return _own_cells(job) + (0 if resident else job.prefix_tokens)


def _sequence_pools(limits: Limits) -> dict[type[Resident | Task], list[int]]:
    """Sequence ids by use; popped from the end, so that the lowest free id comes first at the start."""
    branches = limits.residents + limits.slots if limits.slots else 0
    residents = limits.residents if limits.slots else 0
    return {
        Resident: list(reversed(range(residents))),
        Branch: list(reversed(range(residents, branches))),
        Prefill: [branches] if limits.can_prefill else [],
    }
