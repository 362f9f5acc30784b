"""What sharing one prefill saved, computed from what the run itself measured.

    agents that re-prefill, one after another:  [prefill][answer] [prefill][answer] ... N times
    this run:                                   [prefill][all answers in one batch]

The answers are taken to cost the agents no more than they cost here, which flatters the agents: they decode
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmkv.protocol.messages import RunReport


@dataclass(frozen=True, slots=True)
class Savings:
    """Prefill work that was not done again, and the times to compare; milliseconds."""

    prefills_run: int
    tokens_avoided: int
    prefill_avoided_ms: float
    wall_ms: float

    @classmethod
    def of(cls, report: RunReport) -> Savings:
        reused = sum(branch.tokens.reused for branch in report.branches)
        return cls(
            prefills_run=report.prefills_run,
            tokens_avoided=max(0, reused - report.prefills_run * report.document_tokens),
            prefill_avoided_ms=report.prefill_saved_ms,
            wall_ms=report.wall_ms,
        )

    @property
    def agents_ms(self) -> float:
        """What re-prefilling agents would have taken: computed, not measured."""
        return self.wall_ms + self.prefill_avoided_ms

    @property
    def ratio(self) -> float:
        """How many times longer the agents would have taken."""
        return self.agents_ms / self.wall_ms if self.wall_ms > 0 else 1.0
