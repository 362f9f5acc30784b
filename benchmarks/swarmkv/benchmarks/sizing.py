"""Contexts of a size that fits the job: cells in use, not cells there are, cost a decode step its time."""

from __future__ import annotations

from dataclasses import dataclass

from swarmkv.protocol.settings import Settings

MARGIN = 64  # cells beyond what is needed: llama.cpp rounds


@dataclass(frozen=True, slots=True)
class Sizing:
    """Of a benchmark's largest case."""

    document_tokens: int
    slots: int
    own_tokens: int  # longest prompt and answer

    @property
    def prefill_cells(self) -> int:
        return self.document_tokens + MARGIN

    @property
    def branch_cells(self) -> int:
        """One document and all its branches: the next one takes the place of the last."""
        return self.document_tokens + self.slots * self.own_tokens + MARGIN

    def settings(self, settings: Settings) -> Settings:
        """Settings for workers; both roles get the same number of cells, for branches must fit at both."""
        return settings.model_copy(update={"slots": self.slots, "n_ctx": self.branch_cells})
