"""The seam between a worker and its engine: jobs in, events out, all plain data.

    worker (asyncio)  ──PrefillJob, BranchJob, cancel──▶  engine (one thread owns the context)
                      ◀──────────EngineEvent lists──────

The engine calls `emit` on its own thread, at most once a step, with everything that happened in the step. Each
job ends with exactly one of PrefillExported, BranchEnded, JobFailed, JobCancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.messages import Sampling

Tokens = NDArray[np.int32]
Reserve = Callable[[int], memoryview]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is opened with; every value is resolved, nothing is left to guess."""

    model_path: str
    n_ctx: int
    n_batch: int
    n_ubatch: int
    slots: int  # branch sequences decoded at the same time; 0: this engine runs no branches
    residents: int  # snapshots kept in the KV cache for forking
    can_prefill: bool
    threads: int
    n_gpu_layers: int
    kv_type_k: str
    kv_type_v: str
    flash_attention: bool
    swa_full: bool


@dataclass(frozen=True, slots=True)
class PrefillJob:
    """Decode `tokens` from position 0 and export the KV state.

    `reserve(size_bytes)` is called once, on the engine's thread, after the last token was decoded: it returns a
    writable buffer of at least that size, into which llama.cpp writes the state directly. What it raises ends the
    job as JobFailed. The buffer belongs to the caller; the engine drops it before PrefillExported.
    """

    id: str
    tokens: Tokens
    reserve: Reserve


@dataclass(frozen=True, slots=True)
class BranchJob:
    """Continue the prefix of `snapshot` with `prompt`, and sample until it ends.

    `payload` is the verified, read-only state that PrefillExported left; it must stay mapped until the job ends.
    It is not read when the snapshot is resident. A `solo` job is decoded with no other branch in the batch.
    """

    id: str
    snapshot: str
    payload: memoryview
    prefix_tokens: int
    prompt: Tokens
    sampling: Sampling
    solo: bool = False


@dataclass(frozen=True, slots=True)
class PrefillProgressed:
    id: str
    done_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillExported:
    id: str
    size_bytes: int
    prefill_ms: float
    export_ms: float


@dataclass(frozen=True, slots=True)
class BranchProgressed:
    """`text` is whole characters, free of any part of a stop string."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class BranchEnded:
    """Milliseconds from when the engine took the job; `text` is the whole answer, equal to the joined progress.

    `restore_ms` and `decode_ms` (first token to end) are durations; `restore_ms` is 0 when the snapshot was
    resident. `recomputed` counts prefix tokens that were decoded again.
    """

    id: str
    text: str
    finish_reason: Literal["stop", "length"]
    generated: int
    recomputed: int
    restore_ms: float
    prompt_ms: float
    first_token_ms: float
    decode_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class JobFailed:
    id: str
    error: SwarmkvError


@dataclass(frozen=True, slots=True)
class JobCancelled:
    id: str


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine's thread ended by an error that is not a job's: the process must be restarted."""

    error: Exception


EngineEvent = (
    PrefillProgressed | PrefillExported | BranchProgressed | BranchEnded | JobFailed | JobCancelled | EngineDied
)
Emit = Callable[[list[EngineEvent]], None]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a loaded engine is; `identity` digests all that decides whether a snapshot can be restored here."""

    identity: str
    fingerprint: str  # blake2b of the whole GGUF
    layout: dict[str, str | int | bool]  # build, KV types, flash attention ...: named in mismatch errors
    architecture: str
    n_ctx: int  # the real one, as llama.cpp rounded it
    n_ctx_train: int
    kv_bytes_per_token: int
    full_snapshot_bytes: int  # about: of a document that fills the context
    device: str = "CPU"  # what computes, in words


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine has at hand after a step. Cells are held or reserved; tokens count since it was opened."""

    cells_used: int = 0
    residents: tuple[str, ...] = ()  # snapshots, the least recently used first
    prefilled_tokens: int = 0
    generated_tokens: int = 0


class Engine(Protocol):
    """What the workers need; the llama.cpp engine and the null engine satisfy it. All calls are thread-safe."""

    info: EngineInfo

    @property
    def load(self) -> EngineLoad:
        """As of the latest step."""

    def prefill(self, job: PrefillJob) -> None:
        """Queue a prefill; its events follow. Raises nothing: what is wrong with a job is a JobFailed."""

    def branch(self, job: BranchJob) -> None:
        """Queue a branch; it starts when a slot and its cells are free."""

    def cancel(self, job_id: str) -> None:
        """End a job at the next step, or inside a running prefill batch; unknown ids are ignored."""

    def prefix_tokens(self, system: str | None, document: str, template: str | None) -> Tokens:
        """Token ids of a prefix, with its one BOS if the model wants one. Any thread."""

    def suffix_tokens(self, prompt: str, template: str | None) -> Tokens:
        """Token ids of a branch's prompt behind a prefix. Any thread."""

    def prefix_digest(self, system: str | None, document_digest: str, template: str | None) -> str:
        """Digest of the rendered prefix pieces, the document by its digest. Any thread."""

    def default_stop(self, template: str | None) -> tuple[str, ...]:
        """Stop texts of a branch that names none. Any thread."""

    def check_model(self) -> None:
        """Raise ModelError when the model's files were overwritten since they were loaded. Any thread."""

    def close(self) -> None:
        """Stop the thread and free context and model; jobs still there end as JobCancelled."""
