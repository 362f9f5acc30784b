"""The page of a run as blocks: what stands at its head, and its branches with their bars and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmkv.monitor.web import pages, timeline
from swarmkv.monitor.web.timeline import Bar
from swarmkv.protocol.ledger import BranchView, Ledger, RunView
from swarmkv.protocol.messages import TokenCounts

PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class Row:
    """A branch, and its bars."""

    branch: BranchView
    bars: list[Bar]


class RunPage:
    """Some of a run's branches, read again and again; what has ended is kept."""

    def __init__(self, ledger: Ledger, run_id: str, number: int, *, can_act: bool) -> None:
        """`number` of the page counts from 1."""
        self._ledger = ledger
        self.run_id = run_id
        self.number = number
        self._can_act = can_act
        self._known: dict[int, BranchView] = {}
        self.run: RunView | None = None

    @property
    def branches(self) -> list[BranchView]:
        """As they were read last."""
        return list(self._known.values())

    async def read(self) -> None:
        """Raises RunNotFound, ProtocolError, BrokerError."""
        self.run = run = await self._ledger.inspection.run(self.run_id)
        start = (self.number - 1) * PER_PAGE
        indexes = range(start, min(run.branches, start + PER_PAGE))
        views = await self._ledger.inspection.branches(self.run_id, indexes, self._known)
        self._known = {view.index: view for view in views}

    def blocks(self, *, form_token: str = "") -> dict[str, str]:
        """The blocks of what was read last; forms get their token from the page when it is empty."""
        run = self.run
        assert run is not None
        axis = timeline.axis_of(run)
        shared = {"run": run, "can_act": self._can_act, "form_token": form_token, "back": f"/runs/{run.run_id}"}
        found = {
            "run-head": pages.render(
                "parts/run_head.html", **shared, tokens=self._tokens(), is_partial=run.branches > PER_PAGE
            ),
            "run-axis": pages.render("parts/axis.html", axis=axis),
        }
        for view in self._known.values():
            row = Row(view, axis.bars(timeline.segments(run, view)))
            found[f"row-{view.index}"] = pages.render("parts/branch_row.html", row=row, **shared)
            found[f"text-{view.index}"] = pages.render("parts/branch_text.html", branch=view, run=run)
        return found

    def context(self, *, form_token: str) -> dict[str, Any]:
        """What the page's template needs."""
        run = self.run
        assert run is not None
        return {
            "run": run,
            "blocks": self.blocks(form_token=form_token),
            "indexes": list(self._known),
            "number": self.number,
            "num_pages": -(-run.branches // PER_PAGE),
        }

    def _tokens(self) -> TokenCounts:
        counts = [view.tokens for view in self._known.values()]
        names = TokenCounts.model_fields
        return TokenCounts(**{name: sum(getattr(item, name) for item in counts) for name in names})
