"""Seconds of one round, and what they say about bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from swarmkv.benchmarks.mappings import GB
from swarmkv.benchmarks.stats import Spread


@dataclass(frozen=True, slots=True)
class Seconds:
    """All of the same bytes. `fresh`: into a mapping whose pages do not exist yet; `touched`: they do.

    The extra bytes are what the process grew by beyond the snapshot itself: a second copy would be as large.
    """

    export_s: float  # into a fresh mapping
    export_touched_s: float
    restore_s: float
    copy_fresh_s: float
    copy_touched_s: float
    export_extra_bytes: int
    restore_extra_bytes: int


def case_of(tokens: int, size_bytes: int, rounds: Sequence[Seconds], **facts: Any) -> dict[str, Any]:
    """One case of the results. The shares are medians over rounds of one rate against the other."""

    def gbps(pick: Callable[[Seconds], float]) -> float:
        return median(size_bytes / pick(one) / GB for one in rounds)

    def share(part: Callable[[Seconds], float], whole: Callable[[Seconds], float]) -> dict[str, float]:
        return Spread.of([whole(one) / part(one) for one in rounds]).as_json()

    restoring = share(lambda one: one.restore_s, lambda one: one.copy_touched_s)
    exporting = share(lambda one: one.export_s, lambda one: one.copy_fresh_s)
    return {
        "document_tokens": tokens,
        "payload_bytes": size_bytes,
        "rounds": len(rounds),
        **facts,
        "restore_ms": median(one.restore_s for one in rounds) * 1000,
        "export_ms": median(one.export_s for one in rounds) * 1000,
        "restore_gbps": gbps(lambda one: one.restore_s),
        "memcpy_gbps": gbps(lambda one: one.copy_touched_s),
        "export_gbps": gbps(lambda one: one.export_s),
        "export_touched_gbps": gbps(lambda one: one.export_touched_s),
        "memcpy_fresh_gbps": gbps(lambda one: one.copy_fresh_s),
        "restore_vs_memcpy": restoring["median"],
        "export_vs_memcpy": exporting["median"],
        "restore_vs_memcpy_spread": restoring,
        "export_vs_memcpy_spread": exporting,
        "export_extra_bytes": max(one.export_extra_bytes for one in rounds),
        "restore_extra_bytes": max(one.restore_extra_bytes for one in rounds),
    }
