"""The picture that a follower keeps of a run."""

from __future__ import annotations

import pytest

from swarmkv.producer.view import BranchView, RunView
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
from swarmkv.protocol.messages import BranchResult


@pytest.fixture
def view() -> RunView:
    return RunView("id", "name", {"a": BranchView("a"), "b": BranchView("b")})


def said(text: str, *, offset: int = 0, attempt: int = 1) -> BranchText:
    return BranchText(branch="a", attempt=attempt, offset=offset, text=text)


def apply(view: RunView, *events: Event) -> None:
    for event in events:
        view.apply(event)


def test_the_prefill_goes_from_progress_to_done(view: RunView) -> None:
    apply(view, PrefillProgress(done_tokens=5, total_tokens=10))
    assert (view.prefill.done, view.prefill.total, view.state) == (5, 10, "prefilling")
    apply(view, PrefillDone(tokens=10, prefill_ms=3.0, reused=False))
    assert view.prefill.is_done
    assert view.state == "running"


def test_text_of_an_attempt_is_joined(view: RunView) -> None:
    apply(view, BranchStarted(branch="a", attempt=1, worker="w"))
    apply(view, said("one "), said("two", offset=4))
    assert view.branches["a"].text == "one two"


def test_a_piece_that_was_written_twice_is_taken_once(view: RunView) -> None:
    apply(view, said("one "), said("one "), said("one two", offset=0), said("wo three", offset=5))
    assert view.branches["a"].text == "one two three"


def test_a_hole_in_a_trimmed_stream_is_skipped(view: RunView) -> None:
    apply(view, said("one "), said("three", offset=8), said("ee four", offset=11))
    assert view.branches["a"].text == "one three four"


def test_a_restart_voids_the_text_and_late_words_of_the_old_attempt(view: RunView) -> None:
    apply(view, BranchStarted(branch="a", attempt=1, worker="w"), said("old"))
    apply(view, BranchRestarted(branch="a", attempt=2, reason="lost"))
    assert view.branches["a"].text == ""
    apply(view, said("late", offset=3))
    assert view.branches["a"].text == ""
    apply(view, BranchStarted(branch="a", attempt=2, worker="w"), said("new", attempt=2))
    assert view.branches["a"].text == "new"


def test_the_end_of_a_branch_counts_and_holds_its_result(view: RunView) -> None:
    result = BranchResult(text="answer", finish_reason="stop")
    apply(view, BranchDone(branch="a", attempt=1, state="done", result=result))
    assert view.num_finished == 1
    assert view.branches["a"].result == result


def test_a_branch_that_is_tried_again_after_its_end_is_not_finished(view: RunView) -> None:
    failure = BranchResult(finish_reason="error")
    apply(view, BranchDone(branch="a", attempt=1, state="failed", result=failure))
    apply(view, BranchRestarted(branch="a", attempt=2, reason="it is tried again"))
    assert (view.num_finished, view.branches["a"].state) == (0, "queued")


def test_warnings_and_the_end_are_kept(view: RunView) -> None:
    apply(view, RunWarning(message="No worker.", hint="Start one."), RunDone(state="failed"))
    assert view.warnings == ["No worker. Start one."]
    assert view.state == "failed"


def test_an_endless_answer_does_not_grow_the_picture(view: RunView) -> None:
    apply(view, *(said("x" * 1_000, offset=n * 1_000) for n in range(10)))
    assert len(view.branches["a"].text) == 2_000
