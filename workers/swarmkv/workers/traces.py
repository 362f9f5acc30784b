"""What workers tell of their jobs in traces: a span for each attempt, its stages below it.

    prefill  ├─ export
    branch   ├─ queue ─┼─ load ─┼─ restore ─┼─ prompt ─┼─ decode

No text of users is in them: runs by id, branches by index.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from swarmkv.protocol.ledger import Outcome, TakenBranch, TakenPrefill
from swarmkv.protocol.messages import BranchResult, Sampling
from swarmkv.protocol.tracing import Attributes, Span, Tracing, run_context

NS_PER_MS = 1_000_000
LEFT = "left"  # an attempt that ended here without an end of its branch: cancelled, lost or handed back


@dataclass(slots=True)
class _Attempt:
    """An attempt that is under way; times are nanoseconds since the epoch."""

    span: Span
    taken_ns: int
    loaded_ns: int = 0
    outcome: str = LEFT
    error: str = ""


class Traces:
    """The spans of one worker's jobs, by job id. Without tracing every call returns at once."""

    def __init__(self, tracing: Tracing, worker_id: str, alias: str) -> None:
        self._tracing = tracing
        self._common: Attributes = {
            "swarmkv.worker": worker_id,
            "gen_ai.provider.name": "swarmkv",
            "gen_ai.request.model": alias,
        }
        self._attempts: dict[str, _Attempt] = {}

    def begin_prefill(self, taken: TakenPrefill) -> None:
        """A prefill was taken: it belongs to the run that asked for it first."""
        attributes = {"swarmkv.prefill.generation": taken.generation}
        self._begin("swarmkv.prefill", taken.job_id, taken.run_id, taken.traceparent, attributes)

    def begin_branch(self, taken: TakenBranch) -> None:
        """A branch was taken, after it had waited in the queue."""
        attributes = {
            "swarmkv.branch.index": taken.index,
            "swarmkv.branch.attempt": taken.attempt,
            "swarmkv.snapshot": taken.snapshot,
            "gen_ai.operation.name": "text_completion",
            **_sampling(taken.spec.sampling),
        }
        queue_ns = int(taken.queue_ms * NS_PER_MS)
        self._begin("swarmkv.branch", taken.job_id, taken.run_id, taken.traceparent, attributes, queue_ns)

    def _begin(
        self, name: str, job_id: str, run_id: str, traceparent: str, attributes: Attributes, queue_ns: int = 0
    ) -> None:
        if not self._tracing.is_on:
            return
        now_ns = time.time_ns()
        span = self._tracing.start(
            name,
            "consumer",
            {**self._common, "swarmkv.run.id": run_id, **attributes},
            parent=run_context(run_id, traceparent),
            start_ns=now_ns - queue_ns,
        )
        if queue_ns:
            span.child("swarmkv.queue", now_ns - queue_ns, now_ns)
        self._attempts[job_id] = _Attempt(span, now_ns)

    def loaded(self, job_id: str) -> None:
        """Snapshot and prompt are ready for the engine."""
        if (attempt := self._attempts.get(job_id)) is not None:
            attempt.loaded_ns = time.time_ns()
            attempt.span.child("swarmkv.load", attempt.taken_ns, attempt.loaded_ns)

    def prefilled(self, job_id: str, snapshot: str, tokens: int, *, export_ms: float | None) -> None:
        """A snapshot is there: decoded now and exported, or (`export_ms` None) found in the store."""
        if (attempt := self._attempts.get(job_id)) is None:
            return
        is_found = export_ms is None
        counted = "swarmkv.tokens.reused" if is_found else "swarmkv.tokens.prefilled"
        attempt.span.note({"swarmkv.snapshot": snapshot, counted: tokens, "swarmkv.prefill.found": is_found})
        if export_ms is not None:
            now_ns = time.time_ns()
            attempt.span.child("swarmkv.export", now_ns - int(export_ms * NS_PER_MS), now_ns)

    def finished(self, outcome: Outcome) -> None:
        """The branch has a result by this attempt."""
        if (attempt := self._attempts.get(outcome.branch.job_id)) is None:
            return
        result = outcome.result
        attempt.outcome = outcome.state
        attempt.error = result.error.code if result.error else ""
        attempt.span.note(_counts(result))
        if outcome.state == "done":
            _add_stages(attempt, result)

    def note(self, job_id: str, outcome: str, error: str = "") -> None:
        """How an attempt ends that is none of the above."""
        if (attempt := self._attempts.get(job_id)) is not None:
            attempt.outcome, attempt.error = outcome, error

    def end(self, job_id: str) -> None:
        """The job runs no more."""
        if (attempt := self._attempts.pop(job_id, None)) is not None:
            attempt.span.note({"swarmkv.outcome": attempt.outcome})
            attempt.span.end(error=attempt.error)


def _add_stages(attempt: _Attempt, result: BranchResult) -> None:
    """What the engine did, by what it measured: all but `restore` and `decode` are counted from the job's start."""
    timings, start_ns = result.timings_ms, attempt.taken_ns

    def at_ns(milliseconds: float) -> int:
        return start_ns + int(milliseconds * NS_PER_MS)

    loaded_ns = attempt.loaded_ns or start_ns
    restored_ns = loaded_ns + int(timings.restore * NS_PER_MS)
    if timings.restore:
        attempt.span.child("swarmkv.restore", loaded_ns, restored_ns)
    attempt.span.child("swarmkv.prompt", restored_ns, at_ns(timings.prompt))
    attempt.span.event("swarmkv.first_token", at_ns(timings.first_token))
    attempt.span.child("swarmkv.decode", at_ns(timings.first_token), at_ns(timings.first_token + timings.decode))


def _counts(result: BranchResult) -> Attributes:
    tokens = result.tokens
    return {
        "swarmkv.tokens.reused": tokens.reused,
        "swarmkv.tokens.recomputed": tokens.recomputed,
        "swarmkv.tokens.generated": tokens.generated,
        "gen_ai.usage.input_tokens": tokens.reused + tokens.recomputed + tokens.prompt,
        "gen_ai.usage.cache_read.input_tokens": tokens.reused,
        "gen_ai.usage.output_tokens": tokens.generated,
        "gen_ai.response.finish_reasons": [result.finish_reason],
    }


def _sampling(sampling: Sampling) -> Attributes:
    seed = {} if sampling.seed is None else {"gen_ai.request.seed": sampling.seed}
    return {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        **seed,
    }
