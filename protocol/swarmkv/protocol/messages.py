"""The frozen messages that cross Redis: what is asked (run, branch, sampling) and what comes back.

Times are milliseconds of Redis' clock; durations are milliseconds measured by the process that did the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from swarmkv.protocol.identity import digest_fields

RunState = Literal["queued", "prefilling", "running", "done", "completed_with_errors", "failed", "cancelled"]
BranchState = Literal["waiting", "queued", "running", "done", "failed", "cancelled"]
WorkerState = Literal["running", "paused", "draining"]
FinishReason = Literal["stop", "length", "cancelled", "error"]

FINAL_RUN_STATES: frozenset[RunState] = frozenset({"done", "completed_with_errors", "failed", "cancelled"})
FINAL_BRANCH_STATES: frozenset[BranchState] = frozenset({"done", "failed", "cancelled"})

INT32_MAX = 2**31 - 1
MAX_TRACEPARENT_CHARS = 100  # it has 55 in the version of today
MAX_DEADLINE_S = 31_536_000  # a year
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]


class Message(BaseModel):
    """Immutable, closed: an unknown field is an error that names it. Errors do not quote text of users."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class Sampling(Message):
    """How a branch picks its tokens: llama.cpp's names, llama-server's order and defaults.

    Order: logit_bias, penalties, top_k, typical_p, top_p, min_p, temperature, seeded draw. `temperature` 0 is
    greedy. `seed` None is drawn at submission and stored, so that a retry draws the same tokens.
    """

    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = 0.8
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] = 40
    top_p: UnitInterval = 0.95
    min_p: UnitInterval = 0.05
    typical_p: UnitInterval = 1.0
    repeat_penalty: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    repeat_last_n: Annotated[int, Field(ge=0, le=65536)] = 64
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    logit_bias: dict[TokenId, float] = Field(default_factory=dict, max_length=1024)
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(default=(), max_length=16)
    ignore_eos: bool = False


class BranchSpec(Message):
    """One prompt that continues the prefix.

    With `deadline_s` it fails when it has not ended so many seconds after the submission; its run goes on.
    """

    name: str
    prompt: str
    sampling: Sampling = Sampling()
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None


class PrefixSpec(Message):
    """Everything that decides the tokens of a prefix, the document by its digest.

    `template` None is the model's own chat template (or the plain one of a base model). `limit_tokens` is
    reserved for prefixes that end before the document does.
    """

    model: str
    document: str
    system: str | None = None
    template: str | None = None
    limit_tokens: int | None = None

    @property
    def prefix_id(self) -> str:
        """Tagged digest of the fields: equal prefixes are prefilled once."""
        return digest_fields("prefix", **self.model_dump())


class RunSpec(Message):
    """One document with its branches, as submitted. `traceparent`: W3C's context of its trace, if it is traced."""

    run_id: str
    name: str
    prefix: PrefixSpec
    document_bytes: int
    document_name: str = ""
    traceparent: Annotated[str, Field(max_length=MAX_TRACEPARENT_CHARS)] = ""


class ErrorInfo(Message):
    """A failure as data: a stable code, what happened, what to do."""

    code: str
    message: str
    hint: str = ""


class TokenCounts(Message):
    """`reused`: prefix tokens taken from the snapshot. `recomputed`: prefix tokens decoded again."""

    reused: int = 0
    recomputed: int = 0
    prompt: int = 0
    generated: int = 0


class BranchTimings(Message):
    """Milliseconds. `queue`: ready to job start; `prompt`, `first_token`, `total`: from job start."""

    queue: float = 0.0
    restore: float = 0.0
    prompt: float = 0.0
    first_token: float = 0.0
    decode: float = 0.0
    total: float = 0.0


class BranchResult(Message):
    """What one attempt at a branch produced; written once."""

    text: str = ""
    finish_reason: FinishReason
    error: ErrorInfo | None = None
    tokens: TokenCounts = TokenCounts()
    timings_ms: BranchTimings = BranchTimings()


class BranchReport(Message):
    """A branch as a reader sees it, finished or not."""

    name: str
    state: BranchState
    text: str
    finish_reason: FinishReason | None
    error: ErrorInfo | None
    attempts: int
    worker: str | None
    tokens: TokenCounts
    timings_ms: BranchTimings


class RunReport(Message):
    """A run as a reader sees it; `report["name"]` is the branch of that name, iteration is in order."""

    run_id: str
    state: RunState
    name: str
    model: str
    document_tokens: int
    prefills_run: int
    prefill_ms: float
    prefill_saved_ms: float
    wall_ms: float
    snapshot: str | None
    error: ErrorInfo | None
    branches: tuple[BranchReport, ...]

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_RUN_STATES

    @property
    def by_name(self) -> dict[str, BranchReport]:
        """The branches by name, in order of submission."""
        return {branch.name: branch for branch in self.branches}

    def __getitem__(self, name: str) -> BranchReport:
        return self.by_name[name]

    def __len__(self) -> int:
        return len(self.branches)

    def each(self) -> Iterator[BranchReport]:
        """The branches in order of submission."""
        return iter(self.branches)


class DeadBranch(Message):
    """A dead-letter entry: a branch that was given up, for what it did to workers or for want of a snapshot.

    `crashes`: deaths of its worker; `solo_crashes`: those while it was alone there. `dead_ms`: when (Redis' clock).
    """

    run_id: str
    index: int
    name: str
    model: str
    error: ErrorInfo
    attempts: int
    crashes: int
    solo_crashes: int
    rebuilds: int
    dead_ms: int

    @property
    def id(self) -> str:
        """What commands take."""
        return f"{self.run_id}:{self.index}"

    @property
    def path(self) -> str:
        """The same for people: RUN/BRANCH."""
        return f"{self.run_id}/{self.name}"


class SnapshotInfo(Message):
    """What a prefill registers: where its KV cache is and what it cost."""

    snapshot: str
    prefix_tokens: int
    size_bytes: int
    prefill_ms: float
    identity: str
    host: str


class StoredSnapshot(Message):
    """A snapshot as its store's workers see it.

    `documents`, `models`: what it was made for, as far as Redis still knows. `hits`: branches that continued it.
    `is_needed`: runs that have not ended need it, so it is not evicted. `problem`: why it cannot be used.
    """

    key: str
    documents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tokens: int
    size_bytes: int
    created_ms: int
    used_ms: int
    hits: int = 0
    is_needed: bool = False
    is_pinned: bool = False
    problem: str = ""


class StoreInfo(Message):
    """A snapshot store: one directory, whichever containers see it. `snapshots`: the ones used last, first.

    `num_snapshots` may be more than are listed. `limit_bytes`: its budget, or what its file system has if that is
    less. `age_s`: of this report.
    """

    id: str
    host: str
    path: str
    used_bytes: int
    limit_bytes: int
    num_snapshots: int
    snapshots: tuple[StoredSnapshot, ...] = ()
    age_s: float = 0.0


class WorkerInfo(Message):
    """One worker's heartbeat.

    `cells_used` of `n_ctx`: held or reserved in the KV cache; `residents`: snapshots there. `tokens_per_s` since
    the last heartbeat: prefilled by a prefill worker, generated by a branch worker. `store`: which one it sees.
    """

    id: str
    role: Literal["prefill", "branch"]
    model: str
    pid: int
    host: str
    slots: int
    slots_used: int = 0
    n_ctx: int = 0
    identity: str = ""
    started_ms: int = 0
    state: WorkerState = "running"
    cells_used: int = 0
    residents: tuple[str, ...] = ()
    tokens_per_s: float = 0.0
    rss_bytes: int = 0
    device: str = ""
    version: str = ""
    store: str = ""
