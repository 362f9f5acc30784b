"""An engine without a model: made-up tokens at once, for measuring and testing everything around it."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from swarmkv.protocol.errors import EngineError, SwarmkvError
from swarmkv.protocol.identity import digest_bytes, digest_fields
from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchJob,
    BranchProgressed,
    Emit,
    EngineConfig,
    EngineEvent,
    EngineInfo,
    EngineLoad,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillJob,
    PrefillProgressed,
    Tokens,
)

MS = 1000.0
STATE_BYTES = 32
_Job = PrefillJob | BranchJob


class NullEngine:
    """Satisfies `jobs.Engine`. A token is a byte; the state of a prefix is a digest of its tokens.

    An answer is `max_tokens` words that depend on the state and the prompt alone, so a branch that was given
    another document's state is seen. A job is done before it could be cancelled.
    """

    info: EngineInfo
    load: EngineLoad = EngineLoad()

    def __init__(self, config: EngineConfig, emit: Emit) -> None:
        self._emit = emit
        self._commands: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = True
        self.info = EngineInfo(
            identity=digest_fields("null_engine"),
            fingerprint=digest_fields("null_engine_model"),
            layout={"build": "null"},
            architecture="null",
            n_ctx=config.n_ctx,
            n_ctx_train=config.n_ctx,
            kv_bytes_per_token=1,
            full_snapshot_bytes=STATE_BYTES,
            device="none",
        )
        self._thread = threading.Thread(target=self._run, name="swarmkv-null-engine", daemon=True)
        self._thread.start()

    def prefill(self, job: PrefillJob) -> None:
        """Queue a prefill; its events follow."""
        self._submit(job)

    def branch(self, job: BranchJob) -> None:
        """Queue a branch; its events follow."""
        self._submit(job)

    def cancel(self, job_id: str) -> None:
        """Does nothing: jobs take no time."""

    def prefix_tokens(self, system: str | None, document: str, template: str | None) -> Tokens:
        """The bytes of the texts."""
        return _bytes_as_tokens((template or "") + (system or "") + document)

    def suffix_tokens(self, prompt: str, template: str | None) -> Tokens:
        """The bytes of the prompt."""
        return _bytes_as_tokens((template or "") + prompt)

    def prefix_digest(self, system: str | None, document_digest: str, template: str | None) -> str:
        """Digest of the pieces, the document by its digest."""
        return digest_fields("null_prefix", system=system, document=document_digest, template=template)

    def default_stop(self, template: str | None) -> tuple[str, ...]:  # noqa: ARG002 - satisfies Engine
        """None: answers end by their length."""
        return ()

    def check_model(self) -> None:
        """There is none to change."""

    def close(self) -> None:
        """Stop the thread behind the jobs that are queued."""
        with self._lock:
            self._is_running = False
            self._commands.put(None)
        self._thread.join()

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._is_running:
                self._commands.put(job)
                return
        self._emit([JobCancelled(job.id)])

    def _run(self) -> None:
        while (job := self._commands.get()) is not None:
            events = _prefilled(job) if isinstance(job, PrefillJob) else _answered(job)
            self.load = _with(self.load, job, events[-1])
            self._emit(events)


def _with(load: EngineLoad, job: _Job, ending: EngineEvent) -> EngineLoad:
    """No cells are held: tokens alone are counted."""
    if isinstance(job, PrefillJob):
        return replace(load, prefilled_tokens=load.prefilled_tokens + len(job.tokens))
    generated = ending.generated if isinstance(ending, BranchEnded) else 0
    return replace(load, generated_tokens=load.generated_tokens + generated)


def _prefilled(job: PrefillJob) -> list[EngineEvent]:
    state = hashlib.blake2b(job.tokens.tobytes(), digest_size=STATE_BYTES).digest()
    started_s = perf_counter()
    try:
        job.reserve(STATE_BYTES)[:STATE_BYTES] = state
    except Exception as exc:  # as in the real engine: what reserve raises is the job's own
        error = exc if isinstance(exc, SwarmkvError) else EngineError(f"The export failed: {exc!r}.")
        return [JobFailed(job.id, error)]
    export_ms = (perf_counter() - started_s) * MS
    return [
        PrefillProgressed(job.id, len(job.tokens)),
        PrefillExported(job.id, STATE_BYTES, prefill_ms=0.0, export_ms=export_ms),
    ]


def _answered(job: BranchJob) -> list[EngineEvent]:
    state = digest_bytes(bytes(job.payload[:STATE_BYTES]))[:8]
    prompt = digest_bytes(job.prompt.tobytes())[:8]
    words = [f"{state}-{prompt}-{number} " for number in range(job.sampling.max_tokens)]
    ended = BranchEnded(
        id=job.id,
        text="".join(words),
        finish_reason="length",
        generated=len(words),
        recomputed=0,
        restore_ms=0.0,
        prompt_ms=0.0,
        first_token_ms=0.0,
        decode_ms=0.0,
        total_ms=0.0,
    )
    return [*(BranchProgressed(job.id, word) for word in words), ended]


def _bytes_as_tokens(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)
