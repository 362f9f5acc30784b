"""The engine's step: plan, decode, settle.

    admit     start the jobs that fit: restore a snapshot, fork it
    plan      rows of every running task
    decode    one llama_decode for all of them
    settle    sample, give out text, export, free what ended

A step that fails costs its own jobs only. llama.cpp does not say whose rows it choked on, so everyone in the
batch starts again from the resident prefix, alone, until proven good; who fails alone has failed.
"""

from __future__ import annotations

import logging
from math import isnan
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import DecodeFailed, EngineError, OutOfCells, SwarmkvError
from swarmkv.workers.engine.answer import MS, Answer
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.cancel import CancelBoard
from swarmkv.workers.engine.context import Aborted, Context
from swarmkv.workers.engine.jobs import (
    BranchProgressed,
    Emit,
    EngineEvent,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillProgressed,
)
from swarmkv.workers.engine.meter import Meter
from swarmkv.workers.engine.plan import Admission, Branch, Job, Prefill, Rows, Scheduler, Task
from swarmkv.workers.engine.samplers import Greedy
from swarmkv.workers.engine.tokens import Vocab

logger = logging.getLogger(__name__)

_NAN_HINT = "Set SWARMKV_KV_TYPE_K and SWARMKV_KV_TYPE_V to f32, or use other weights of the model."


class Loop:
    """All jobs of one context. Belongs to the thread that owns the context."""

    def __init__(
        self, context: Context, vocab: Vocab, scheduler: Scheduler, cancels: CancelBoard, emit: Emit
    ) -> None:
        self._context = context
        self._vocab = vocab
        self._scheduler = scheduler
        self._cancels = cancels
        self._emit = emit
        self._batch = Batch(scheduler.limits.n_batch)
        self._answers: dict[Branch, Answer] = {}
        self._taken_s: dict[str, float] = {}  # by job id, from submission to the last event
        self._prefill_started_s = 0.0
        self._events: list[EngineEvent] = []
        self.meter = Meter(scheduler)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def submit(self, job: Job, taken_s: float) -> None:
        """Queue a job; one that can never run fails with the next `step` or `flush`."""
        self._taken_s[job.id] = taken_s
        try:
            self._scheduler.submit(job)
        except SwarmkvError as exc:
            self._report_failure(job.id, exc)

    def cancel(self, job_id: str) -> None:
        """End a job, running or waiting; unknown ids are ignored."""
        self._cancels.settle(job_id)
        task = self._scheduler.running(job_id)
        if task is not None:
            self._free(task)
        elif self._scheduler.withdraw(job_id) is None:
            return
        self._taken_s.pop(job_id, None)
        self._events.append(JobCancelled(job_id))

    def cancel_all(self) -> None:
        """End every job."""
        for job in [*(task.job for task in self._scheduler.tasks), *self._scheduler.waiting]:
            self.cancel(job.id)

    def step(self) -> None:
        """One batch, and one `emit` with everything that happened."""
        self._admit()
        rows = self._scheduler.next_rows()
        if rows and self._decode(rows):
            self._settle(rows)
        self.meter.update()
        self.flush()

    def flush(self) -> None:
        """Emit what has happened since the last time."""
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    # -- admit

    def _admit(self) -> None:
        while (admission := self._scheduler.admit()) is not None:
            for resident in admission.evicted:
                self._context.remove(resident.sequence)
            if isinstance(admission.task, Prefill):
                self._prefill_started_s = perf_counter()
            else:
                self._start_branch(admission.task, admission)

    def _start_branch(self, branch: Branch, admission: Admission) -> None:
        try:
            answer = Answer(branch.job, self._vocab, self._taken_s[branch.job.id])
            self._answers[branch] = answer
            if admission.must_restore:
                answer.restore_s = self._restore(branch)
            self._context.fork(branch.resident.sequence, branch.sequence)
        except SwarmkvError as exc:
            self._fail(branch, exc)
            if branch.resident.forks == 0 and admission.must_restore:
                self._context.remove(branch.resident.sequence)
                self._scheduler.drop(branch.resident)

    def _restore(self, branch: Branch) -> float:
        started_s = perf_counter()
        job, sequence = branch.job, branch.resident.sequence
        self._context.restore(sequence, job.payload, job.prefix_tokens)
        took_s = perf_counter() - started_s
        logger.info(
            "Restored %d tokens in %.1f ms",
            job.prefix_tokens,
            took_s * MS,
            extra={"action": "snapshot_restored", "snapshot": job.snapshot, "ms": took_s * MS},
        )
        return took_s

    # -- decode

    def _decode(self, rows: list[Rows]) -> bool:
        """Whether the rows are in the cells now; if not, the next plan takes care of what happened."""
        self._fill_batch(rows)
        try:
            with self._cancels.decoding(frozenset(row.task.job.id for row in rows)):
                self._context.decode(self._batch)
        except OutOfCells as exc:
            self._find_cells(rows, exc)
        except Aborted:  # by jobs whose cancellation is next in the queue
            self._start_again(rows)
        except DecodeFailed as exc:
            self._isolate(rows, exc)
        else:
            self._scheduler.advance(rows)
            return True
        return False

    def _fill_batch(self, rows: list[Rows]) -> None:
        self._batch.clear()
        for row in rows:
            task = row.task
            self._batch.add(task.chunk(row.count), task.position, task.sequence, wants_logits=row.wants_logits)

    def _find_cells(self, rows: list[Rows], error: OutOfCells) -> None:
        """Nothing was written: evict a resident, or try fewer rows; one row that finds none has failed."""
        evicted = self._scheduler.shrink(rows)
        logger.warning("No KV cells for %d rows", self._batch.count, extra={"action": "out_of_cells"})
        if evicted is not None:
            self._context.remove(evicted.sequence)
        elif self._batch.count == 1:
            self._fail(rows[0].task, error)

    def _isolate(self, rows: list[Rows], error: DecodeFailed) -> None:
        logger.warning("%s", error, extra={"action": "decode_failed", "jobs": len(rows)})
        if len(rows) == 1:
            self._fail(rows[0].task, error)
            return
        for row in rows:
            row.task.is_suspect = True
        self._start_again(rows)

    def _start_again(self, rows: list[Rows]) -> None:
        """Back to the prefix: after a failed batch its sequences hold any part of it."""
        for row in rows:
            task = row.task
            self._context.remove(task.sequence)
            task.fed = 0
            if isinstance(task, Branch):
                self._context.fork(task.resident.sequence, task.sequence)

    # -- settle

    def _settle(self, rows: list[Rows]) -> None:
        decoded_s = perf_counter()
        sampling = [row.task for row in rows if row.wants_logits and isinstance(row.task, Branch)]
        for branch in sampling:
            self._answers[branch].prompt_decoded(decoded_s)
        if sampling:
            self._answer(sampling)
        for row in rows:
            if isinstance(row.task, Prefill):
                self.meter.prefilled_tokens += row.count
                self._settle_prefill(row.task)

    def _answer(self, branches: list[Branch]) -> None:
        """A token for each branch, in the order of the batch's logits rows; a row without one fails its branch."""
        try:
            logits = self._context.logits(self._batch)
        except DecodeFailed as exc:
            for branch in branches:
                self._fail(branch, exc)
            return
        for index, (branch, row) in enumerate(zip(branches, self._batch.logits_rows, strict=True)):
            try:
                token = self._pick(branch, logits[index], row)
            except DecodeFailed as exc:
                self._fail(branch, exc)
            else:
                self._take(branch, token, perf_counter())

    def _pick(self, branch: Branch, logits: NDArray[np.float32], row: int) -> int:
        if isnan(logits[0]):  # and so are all: samplers would pick a token all the same
            raise DecodeFailed("The model computed no numbers: its logits are NaN.", hint=_NAN_HINT)
        sampler = self._answers[branch].sampler
        if isinstance(sampler, Greedy):
            return sampler.pick(logits)
        return sampler.sample(self._context.ptr, row)

    def _take(self, branch: Branch, token: int, now_s: float) -> None:
        answer, job = self._answers[branch], branch.job
        branch.append(token)
        self.meter.generated_tokens += 1
        text, is_stopped = answer.take(token, now_s)
        is_over = is_stopped or branch.is_full
        if is_over and not is_stopped:
            text += answer.stream.finish()
            is_stopped = answer.stream.stopped
        if text:
            self._events.append(BranchProgressed(job.id, text))
        if is_over:
            self._free(branch)
            self._taken_s.pop(job.id, None)
            self._events.append(
                answer.ended(job.id, is_stopped=is_stopped, generated=branch.generated, at_s=perf_counter())
            )

    def _settle_prefill(self, prefill: Prefill) -> None:
        job = prefill.job
        self._events.append(PrefillProgressed(job.id, prefill.fed))
        if prefill.pending:
            return
        try:
            exported = self._export(prefill)
        except Exception as exc:  # what the job's reserve raises is the job's own
            error = exc if isinstance(exc, SwarmkvError) else EngineError(f"The export failed: {exc!r}.")
            self._fail(prefill, error)
            return
        self._free(prefill)
        self._taken_s.pop(job.id, None)
        self._events.append(exported)

    def _export(self, prefill: Prefill) -> PrefillExported:
        self._context.synchronize()
        decoded_s = perf_counter()
        job, sequence = prefill.job, prefill.sequence
        end = self._context.position_after(sequence)
        if end != len(job.tokens):
            raise EngineError(f"A prefill of {len(job.tokens)} tokens ends at position {end}.")
        size_bytes = self._context.export_size(sequence)
        written = self._context.export_into(sequence, job.reserve(size_bytes))
        if written != size_bytes:
            raise EngineError(f"A state of {size_bytes} bytes was written as {written}.")
        prefill_ms = (decoded_s - self._prefill_started_s) * MS
        export_ms = (perf_counter() - decoded_s) * MS
        logger.info(
            "Prefilled %d tokens in %.0f ms, exported %d bytes in %.1f ms",
            *(len(job.tokens), prefill_ms, size_bytes, export_ms),
            extra={"action": "prefill_exported", "bytes": size_bytes, "ms": prefill_ms},
        )
        return PrefillExported(job.id, size_bytes, prefill_ms, export_ms)

    # -- free

    def _fail(self, task: Task, error: SwarmkvError) -> None:
        self._free(task)
        self._report_failure(task.job.id, error)

    def _report_failure(self, job_id: str, error: SwarmkvError) -> None:
        self._taken_s.pop(job_id, None)
        logger.warning("A job failed: %s", error, extra={"action": "job_failed", "code": error.code})
        # Frames would keep the job's buffers alive beyond its end.
        self._events.append(JobFailed(job_id, error.with_traceback(None)))

    def _free(self, task: Task) -> None:
        """Give back a task's sequence, cells and sampler."""
        self._context.remove(task.sequence)
        self._scheduler.end(task)
        if isinstance(task, Branch):
            answer = self._answers.pop(task, None)
            if answer is not None:
                answer.close()
