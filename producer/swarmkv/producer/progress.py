"""Catching up with a run: its events, read as far as they go, without waiting for more."""

from __future__ import annotations

from swarmkv.producer.view import RunView
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.messages import BranchReport, RunReport

_NO_WAIT_MS = 1  # Redis takes 0 for "as long as it takes"


class Progress:
    """What the branches of a run have said so far; each `catch_up` reads only what is new."""

    def __init__(self, ledger: Ledger, report: RunReport, *, kept_chars: int | None = None) -> None:
        self._ledger = ledger
        self._after = "0"
        self._view = RunView.of(report, kept_chars=kept_chars)

    async def catch_up(self, report: RunReport) -> RunReport:
        """`report`, with the texts of its running branches. Raises ProtocolError, BrokerError."""
        if not any(branch.state == "running" for branch in report.branches):
            return report
        while True:
            self._after, events = await self._ledger.runs.read_events(report.run_id, self._after, _NO_WAIT_MS)
            for event in events:
                self._view.apply(event)
            if not events:
                return report.model_copy(update={"branches": tuple(map(self._with_text, report.branches))})

    def _with_text(self, branch: BranchReport) -> BranchReport:
        said = self._view.branches[branch.name]
        if branch.state != "running" or said.attempt != branch.attempts:
            return branch
        # What was said before the stream's first entry was trimmed, or before the kept end.
        cut = "…" if said.num_chars > len(said.text) else ""
        return branch.model_copy(update={"text": cut + said.text})
