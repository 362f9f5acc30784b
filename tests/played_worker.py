"""A worker played by the test, through the ledger alone: its branches stand where the test wants them."""

from __future__ import annotations

from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.events import BranchText
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch, error_info
from swarmkv.protocol.messages import BranchResult, SnapshotInfo, TokenCounts

WORKER = "played-1"
SNAPSHOT = "5a" * 16
_LEASE_MS = 600_000


async def begin(ledger: Ledger, model: str = "default") -> list[TakenBranch]:
    """Prefill what is queued for a model, and start every branch of it."""
    for prefill in await ledger.jobs.take_prefills(model, WORKER, limit=100, lease_ms=_LEASE_MS):
        info = SnapshotInfo(snapshot=SNAPSHOT, prefix_tokens=7, size_bytes=9, prefill_ms=1.5, identity="", host="h")
        assert await ledger.jobs.register(WORKER, prefill, info, decoded=True, ttl_ms=_LEASE_MS)
    return await ledger.jobs.take_branches(model, WORKER, limit=1_000, lease_ms=_LEASE_MS)


async def say(ledger: Ledger, branch: TakenBranch, *pieces: str, said_before: str = "") -> None:
    """Stream what an attempt says."""
    offsets = [len(said_before + "".join(pieces[:number])) for number in range(len(pieces))]
    events = [
        BranchText(branch=branch.spec.name, attempt=branch.attempt, offset=offset, text=piece)
        for offset, piece in zip(offsets, pieces, strict=True)
    ]
    await ledger.jobs.emit({branch.run_id: list(events)})


async def finish(ledger: Ledger, branch: TakenBranch, text: str) -> None:
    """End a branch well."""
    result = BranchResult(text=text, finish_reason="stop", tokens=TokenCounts(reused=7, generated=3))
    assert await ledger.jobs.finish(WORKER, [Outcome(branch, "done", result)]) == [True]


async def fail(ledger: Ledger, branch: TakenBranch, message: str) -> None:
    """End a branch with an error."""
    result = BranchResult(finish_reason="error", error=error_info(SwarmkvError(message)))
    assert await ledger.jobs.finish(WORKER, [Outcome(branch, "failed", result)]) == [True]
