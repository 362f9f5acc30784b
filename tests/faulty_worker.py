"""A worker process with faults, for tests: `python faulty_worker.py ROLE ALIAS MODEL`, WORKER_FAULTS as JSON.

decode_s       every llama_decode takes so much longer
abort_on       a text of bytes: a batch that holds it aborts the process
corrupt        so many restores are refused as corrupt
hang_in_write  a path: the first export writes half a state, makes this file, and never returns
clock_s        so far ahead of the broker's clock goes this process's
tokenise_s     a document takes so much longer to tokenise, and nobody else can meanwhile
null_s         with the null engine: a branch takes so long, unless it is cancelled
record_prefixes  a path: each branch adds a line, its job and the digest of the token ids that its snapshot holds
log_level      no fault: what everything in the process logs, INFO if it is not given
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

FAULTS: dict[str, Any] = json.loads(os.environ.get("WORKER_FAULTS", "{}"))
BYTE_TOKENS = 3  # of the tiny models: the token of a byte is the byte and this


def turn_clock(ahead_s: float) -> None:
    """Before anything imports the functions of `time` by name."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + ahead_s
    time.time_ns = lambda: real_ns() + int(ahead_s * 1e9)


def make_llama_faulty() -> None:
    """Open engines over a context that has the faults."""
    import numpy as np

    from swarmkv.protocol.errors import SnapshotCorrupt
    from swarmkv.workers.engine import thread
    from swarmkv.workers.engine.context import Context

    deadly = np.frombuffer(FAULTS.get("abort_on", "").encode(), np.uint8).astype(np.int32) + BYTE_TOKENS

    class FaultyContext(Context):
        refusals = int(FAULTS.get("corrupt", 0))

        def decode(self, batch: Any) -> None:
            time.sleep(FAULTS.get("decode_s", 0))
            tokens = batch._tokens[: batch.count]
            if len(deadly) and holds(tokens, deadly):
                os.abort()
            super().decode(batch)

        def restore(self, sequence: int, payload: memoryview, prefix_tokens: int) -> None:
            if FaultyContext.refusals > 0:
                FaultyContext.refusals -= 1
                raise SnapshotCorrupt("llama.cpp restored 0 bytes (a fault of the test).")
            super().restore(sequence, payload, prefix_tokens)

        def export_into(self, sequence: int, target: memoryview) -> int:
            if path := FAULTS.get("hang_in_write"):
                target[: len(target) // 2] = bytes(len(target) // 2)
                Path(path).touch()
                threading.Event().wait()
            return super().export_into(sequence, target)

    def holds(tokens: Any, wanted: Any) -> bool:
        windows = range(len(tokens) - len(wanted) + 1)
        return any((tokens[start : start + len(wanted)] == wanted).all() for start in windows)

    def prefix_tokens(self: thread.LlamaEngine, *texts: Any) -> Any:
        with self._text_lock:
            time.sleep(FAULTS.get("tokenise_s", 0))
        return tokenised(self, *texts)

    tokenised = thread.LlamaEngine.prefix_tokens
    thread.LlamaEngine.prefix_tokens = prefix_tokens  # type: ignore[assignment, method-assign]
    thread.open_engine = partial(thread.open_engine, make_context=FaultyContext)


def make_null_slow(seconds: float) -> None:
    """Branches of the null engine take their time, and can be cancelled."""
    from swarmkv.workers.engine import null
    from swarmkv.workers.engine.jobs import BranchJob, JobCancelled

    answered = null._answered
    cancelled: dict[str, threading.Event] = {}

    def answer_slowly(job: BranchJob) -> list[Any]:
        if cancelled.setdefault(job.id, threading.Event()).wait(seconds):
            return [JobCancelled(job.id)]
        return answered(job)

    def cancel(self: Any, job_id: str) -> None:
        cancelled.setdefault(job_id, threading.Event()).set()

    null._answered = answer_slowly
    null.NullEngine.cancel = cancel  # type: ignore[method-assign]


def record_prefixes(path: str) -> None:
    """One write a line: several processes may share the file."""
    from swarmkv.protocol.identity import digest_bytes
    from swarmkv.workers.branch import BranchWorker

    job_of = BranchWorker._job_of

    def recorded(self: BranchWorker, taken: Any, snapshot: Any) -> Any:
        with open(path, "a") as file:
            file.write(f"{taken.job_id} {digest_bytes(bytes(snapshot.tokens))}\n")
        return job_of(self, taken, snapshot)

    BranchWorker._job_of = recorded  # type: ignore[method-assign]


def main() -> None:
    if "clock_s" in FAULTS:
        turn_clock(FAULTS["clock_s"])
    if "record_prefixes" in FAULTS:
        record_prefixes(FAULTS["record_prefixes"])
    import logging

    from swarmkv.protocol.errors import SwarmkvError
    from swarmkv.protocol.settings import load_settings
    from swarmkv.workers.main import run_worker

    logging.basicConfig(
        level=FAULTS.get("log_level", "INFO"), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    settings = load_settings()
    if settings.null_engine:
        if "null_s" in FAULTS:
            make_null_slow(FAULTS["null_s"])
    else:
        make_llama_faulty()
    try:
        sys.exit(run_worker(sys.argv[1], sys.argv[2], sys.argv[3], settings))  # type: ignore[arg-type]
    except SwarmkvError as exc:
        sys.exit(f"error: {exc}")


if __name__ == "__main__":
    main()
