"""What a worker logs of its jobs: a record per change of state, with ids, milliseconds and tokens, never a text.

branch_taken ─▶ branch_first_token ─▶ branch_done | branch_failed
prefill_started ─▶ prefill_done | prefill_failed ─▶ snapshot_registered
"""

from __future__ import annotations

import logging
from typing import Any

from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.ledger import Outcome, TakenBranch, TakenPrefill
from swarmkv.protocol.messages import SnapshotInfo

logger = logging.getLogger(__name__)


class Journal:
    """The records of one worker. Times are milliseconds since the job was taken, unless they say otherwise."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def branch_taken(self, taken: TakenBranch) -> None:
        """`ms`: how long it was ready and waited."""
        self._log("branch_taken", self._of_branch(taken), ms=taken.queue_ms)

    def branch_first_token(self, taken: TakenBranch, ms: float) -> None:
        """The first text of the answer is here."""
        self._log("branch_first_token", self._of_branch(taken), ms=ms)

    def branch_ended(self, outcome: Outcome) -> None:
        """Its ending is recorded: `tokens` are the generated ones, `ms` the whole time."""
        result, fields = outcome.result, self._of_branch(outcome.branch)
        if result.error is not None:
            self._log("branch_failed", fields, level=logging.WARNING, code=result.error.code)
            return
        timings, tokens = result.timings_ms, result.tokens
        self._log(
            "branch_done",
            fields,
            ms=timings.total,
            queue_ms=timings.queue,
            restore_ms=timings.restore,
            first_token_ms=timings.first_token,
            decode_ms=timings.decode,
            tokens=tokens.generated,
            prompt_tokens=tokens.prompt,
            reused_tokens=tokens.reused,
            recomputed_tokens=tokens.recomputed,
            finish_reason=result.finish_reason,
        )

    def prefill_started(self, taken: TakenPrefill, tokens: int) -> None:
        self._log("prefill_started", self._of_prefill(taken), tokens=tokens)

    def prefill_done(self, taken: TakenPrefill, info: SnapshotInfo, export_ms: float) -> None:
        """`ms`: of the decoding alone; the export is beside it."""
        self._log(
            "prefill_done",
            self._of_prefill(taken),
            snapshot=info.snapshot,
            ms=info.prefill_ms,
            export_ms=export_ms,
            tokens=info.prefix_tokens,
            size_bytes=info.size_bytes,
        )

    def prefill_failed(self, taken: TakenPrefill, error: SwarmkvError) -> None:
        fields = self._of_prefill(taken) | {"error": str(error)}
        self._log("prefill_failed", fields, level=logging.WARNING, code=error.code)

    def snapshot_registered(self, taken: TakenPrefill, info: SnapshotInfo, *, decoded: bool) -> None:
        """All who wait for it are queued; `decoded` false: the store had it already."""
        fields = self._of_prefill(taken) | {"snapshot": info.snapshot, "tokens": info.prefix_tokens}
        self._log("snapshot_registered", fields, size_bytes=info.size_bytes, decoded=decoded)

    def _of_branch(self, taken: TakenBranch) -> dict[str, Any]:
        return {
            "run": taken.run_id,
            "branch": taken.spec.name,
            "attempt": taken.attempt,
            "worker": self._worker,
            "snapshot": taken.snapshot,
        }

    def _of_prefill(self, taken: TakenPrefill) -> dict[str, Any]:
        return {"prefix": taken.prefix_id, "generation": taken.generation, "worker": self._worker}

    def _log(self, action: str, ids: dict[str, Any], *, level: int = logging.INFO, **measured: Any) -> None:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in measured.items()}
        logger.log(level, "%s", action.replace("_", " "), extra={"action": action, **ids, **rounded})
