"""What a heartbeat says of its process, beside the jobs that it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.messages import WorkerInfo
from swarmkv.workers.engine.jobs import Engine, EngineLoad

LEAST_SPAN_S = 0.2  # a rate over less says nothing
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Vitals:
    """One worker's share of what its engine has at hand. `store` gives the id of the snapshot store."""

    def __init__(self, role: Role, engine: Engine, store: Callable[[], str]) -> None:
        self._role = role
        self._engine = engine
        self._store = store
        self._tokens, self._at_s = 0, monotonic()
        self._per_s = 0.0

    def added_to(self, info: WorkerInfo) -> WorkerInfo:
        """The heartbeat with what is true now. Call it once a beat: rates are since the last call."""
        load = self._engine.load
        has_branches = self._role == "branch"
        return info.model_copy(
            update={
                "cells_used": load.cells_used,
                "residents": load.residents if has_branches else (),
                "tokens_per_s": self._rate(load),
                "rss_bytes": rss_bytes(),
                "device": self._engine.info.device,
                "store": self._store(),
            }
        )

    def _rate(self, load: EngineLoad) -> float:
        tokens = load.generated_tokens if self._role == "branch" else load.prefilled_tokens
        now_s = monotonic()
        if (span_s := now_s - self._at_s) >= LEAST_SPAN_S:
            self._per_s = round((tokens - self._tokens) / span_s, 1)
            self._tokens, self._at_s = tokens, now_s
        return self._per_s


def rss_bytes() -> int:
    """Memory of this process that is in RAM, mapped snapshots and weights included; 0 where it is not told."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
