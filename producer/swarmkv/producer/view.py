"""A run as its follower sees it: events go in, a picture of the run comes out. No clock, no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmkv.protocol.events import (
    BranchDone,
    BranchRestarted,
    BranchStarted,
    BranchText,
    Event,
    PrefillDone,
    PrefillProgress,
    RunDone,
    RunWarning,
)
from swarmkv.protocol.messages import BranchResult, BranchState, RunReport, RunState

KEPT_CHARS = 2_000  # of a streaming answer: more than a terminal's line


@dataclass(slots=True)
class BranchView:
    """A branch: `text` is the end of what its attempt of now has said, `num_chars` how much that was in all."""

    name: str
    state: BranchState = "waiting"
    attempt: int = 0
    text: str = ""
    num_chars: int = 0
    result: BranchResult | None = None


@dataclass(slots=True)
class PrefillView:
    """Where the prefill stands, in tokens; `total` 0: nothing is known yet."""

    done: int = 0
    total: int = 0
    is_done: bool = False
    is_reused: bool = False
    prefill_ms: float = 0.0


@dataclass(slots=True)
class RunView:
    """A run; branches in the order of submission. Of each text the last `kept_chars` are held; None: all."""

    run_id: str
    name: str
    branches: dict[str, BranchView]
    kept_chars: int | None = KEPT_CHARS
    state: RunState = "queued"
    prefill: PrefillView = field(default_factory=PrefillView)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, report: RunReport, *, kept_chars: int | None = KEPT_CHARS) -> RunView:
        """The picture before any event: only names are taken, for the events tell everything else again."""
        return cls(
            run_id=report.run_id,
            name=report.name,
            branches={branch.name: BranchView(branch.name) for branch in report.branches},
            kept_chars=kept_chars,
        )

    @property
    def num_finished(self) -> int:
        return sum(branch.result is not None for branch in self.branches.values())

    def apply(self, event: Event) -> None:
        """Change the picture by what happened."""
        _APPLY[type(event)](self, event)

    def _kept(self, text: str) -> str:
        return text if self.kept_chars is None else text[-self.kept_chars :]

    def _branch(self, name: str) -> BranchView:
        return self.branches.setdefault(name, BranchView(name))


def _prefill_progress(view: RunView, event: PrefillProgress) -> None:
    view.prefill.done, view.prefill.total = event.done_tokens, event.total_tokens
    view.prefill.is_done = False  # a rebuild starts over
    view.state = "prefilling"


def _prefill_done(view: RunView, event: PrefillDone) -> None:
    view.prefill = PrefillView(event.tokens, event.tokens, True, event.reused, event.prefill_ms)
    view.state = "running"


def _branch_started(view: RunView, event: BranchStarted) -> None:
    _begin(view._branch(event.branch), "running", event.attempt)


def _branch_text(view: RunView, event: BranchText) -> None:
    branch = view._branch(event.branch)
    if event.attempt == branch.attempt or branch.attempt == 0:  # 0: the stream has lost its beginning
        branch.state, branch.attempt = "running", event.attempt
        # A piece that was written twice, after a lost connection, is taken once.
        fresh = event.text[max(0, branch.num_chars - event.offset) :]
        branch.text = view._kept(branch.text + fresh)
        branch.num_chars = max(branch.num_chars, event.offset + len(event.text))


def _branch_restarted(view: RunView, event: BranchRestarted) -> None:
    _begin(view._branch(event.branch), "queued", event.attempt)


def _begin(branch: BranchView, state: BranchState, attempt: int) -> None:
    if attempt >= branch.attempt:
        branch.state, branch.attempt = state, attempt
        branch.text, branch.num_chars, branch.result = "", 0, None


def _branch_done(view: RunView, event: BranchDone) -> None:
    branch = view._branch(event.branch)
    branch.state, branch.attempt, branch.result = event.state, event.attempt, event.result
    branch.text = view._kept(event.result.text)


def _warning(view: RunView, event: RunWarning) -> None:
    view.warnings.append(f"{event.message} {event.hint}".rstrip())


def _run_done(view: RunView, event: RunDone) -> None:
    view.state = event.state


_APPLY: dict[type, Callable[[RunView, Any], None]] = {
    PrefillProgress: _prefill_progress,
    PrefillDone: _prefill_done,
    BranchStarted: _branch_started,
    BranchText: _branch_text,
    BranchRestarted: _branch_restarted,
    BranchDone: _branch_done,
    RunWarning: _warning,
    RunDone: _run_done,
}
