"""Reports on terminals and in pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from swarmkv.cli import render
from swarmkv.cli.live import branch_line, event_line, render_frame
from swarmkv.cli.savings import Savings
from swarmkv.producer.view import BranchView, RunView
from swarmkv.protocol.events import BranchDone, BranchRestarted, PrefillDone, PrefillProgress, RunWarning
from swarmkv.protocol.messages import (
    BranchReport,
    BranchResult,
    BranchTimings,
    ErrorInfo,
    RunReport,
    TokenCounts,
)

HOSTILE = "[red]bold[/red] :smile: \x1b[31mred\x1b[0m \x07 \u202eevil"


def branch(name: str = "risks", **changes: object) -> BranchReport:
    fields: dict[str, object] = {
        "name": name,
        "state": "done",
        "text": "An answer.",
        "finish_reason": "stop",
        "error": None,
        "attempts": 1,
        "worker": "branch-1",
        "tokens": TokenCounts(reused=3_500, prompt=20, generated=33),
        "timings_ms": BranchTimings(queue=2.0, restore=1.25, first_token=38.0, decode=1_000.0, total=1_038.0),
    }
    return BranchReport.model_validate(fields | changes)


def report(*branches: BranchReport, **changes: object) -> RunReport:
    fields: dict[str, object] = {
        "run_id": "0123456789ab",
        "state": "done",
        "name": "spec",
        "model": "default",
        "document_tokens": 3_500,
        "prefills_run": 1,
        "prefill_ms": 4_000.0,
        "prefill_saved_ms": 4_000.0 * (len(branches) - 1),
        "wall_ms": 6_000.0,
        "snapshot": "ab" * 16,
        "error": None,
        "branches": branches,
    }
    return RunReport.model_validate(fields | changes)


def drawn(draw: object, *, terminal: bool, width: int = 100) -> str:
    assert callable(draw)
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, markup=False, highlight=False, emoji=False)
    draw(console)
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_text_is_printed_as_it_stands_and_never_acts(terminal: bool) -> None:
    bad = report(
        branch(text=HOSTILE),
        branch("other", state="failed", error=ErrorInfo(code="x", message=HOSTILE, hint=HOSTILE)),
        name=HOSTILE,
    )
    for draw in (render.answers, render.branch_table, render.summary):
        text = drawn(lambda console, draw=draw: draw(console, bad), terminal=terminal)
        assert "\x1b[31mred" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
    assert "[red]bold[/red] :smile: ␛[31mred" in drawn(lambda c: render.answers(c, bad), terminal=False)


def test_the_branch_table_gives_the_measured_values() -> None:
    text = drawn(lambda console: render.branch_table(console, report(branch())), terminal=False)
    header, row = text.splitlines()
    assert header.split() == [
        *("branch", "state", "queue", "restore", "TTFT", "decode", "tok/s"),
        *("reused", "recomputed", "prompt", "answer"),
    ]
    expected = ["risks", "done", "2.00", "ms", "1.25", "ms", "38", "ms", "32.0", "3,500", "0", "20", "33"]
    assert row.split() == expected


def test_a_fork_of_a_resident_snapshot_is_told_from_a_restored_one() -> None:
    resident = branch(timings_ms=BranchTimings(queue=1.0, restore=0.0, first_token=9.0, total=9.0))
    assert "resident" in drawn(lambda c: render.branch_table(c, report(resident)), terminal=False)


def test_lines_in_a_pipe_have_no_trailing_spaces_and_are_never_cut() -> None:
    long_name = "n" * 300
    text = drawn(lambda c: render.branch_table(c, report(branch(long_name))), terminal=False, width=1_000)
    assert long_name in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [60, 70, 80, 120])
def test_a_narrow_terminal_shortens_names_and_leaves_out_columns_but_cuts_no_figure(width: int) -> None:
    shown = report(branch("a-very-long-branch-name-of-someone"), branch("short"))
    lines = drawn(lambda c: render.branch_table(c, shown), terminal=True, width=width).splitlines()
    figures = lines[-1].split("short")[-1]
    assert "…" not in figures
    assert "38 ms" in figures
    assert "3,500" in figures
    assert ("prompt" in lines[0]) == (width == 120)


def test_an_answer_that_was_cut_or_retried_says_so() -> None:
    text = drawn(lambda c: render.answers(c, report(branch(finish_reason="length", attempts=2))), terminal=False)
    assert text.startswith("risks (cut at max_tokens) (attempt 2)\nAn answer.\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "-"), (0.42, "0.42 ms"), (38.4, "38 ms"), (4_200.0, "4.2 s"), (180_000.0, "3.0 min")],
)
def test_durations_have_the_digits_that_matter(value: float, text: str) -> None:
    assert render.milliseconds(value) == text


def test_savings_are_the_prefills_that_were_not_run_again() -> None:
    saved = Savings.of(report(*(branch(f"b{n}") for n in range(8))))
    assert saved.tokens_avoided == 7 * 3_500
    assert saved.agents_ms == 6_000 + 7 * 4_000
    assert round(saved.ratio, 2) == 5.67


def test_a_reused_snapshot_saves_every_prefill() -> None:
    saved = Savings.of(report(branch(), prefills_run=0, prefill_ms=0.0))
    assert saved.tokens_avoided == 3_500


def test_a_frame_fits_the_terminal_and_shows_running_branches_first() -> None:
    view = RunView("id", "spec", {f"b{n:03}": BranchView(f"b{n:03}") for n in range(200)})
    view.branches["b150"].state = "running"
    view.branches["b150"].text = "now " * 100
    text = drawn(lambda c: c.print(render_frame(view, 60, 20, 1.0)), terminal=False, width=60)
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 60
    assert any("b150" in line and "now" in line for line in lines)
    assert "186 branches not shown" in text


def test_a_branch_line_shows_the_end_of_a_stream_on_one_line() -> None:
    line = branch_line(BranchView("risks", "running", 1, "first\nsecond\x1b[2J end"), 8, 60).plain
    assert line == "● risks     first second␛[2J end"
    assert len(branch_line(BranchView("risks", "running", 1, "x" * 500), 8, 60).plain) <= 60


def test_a_finished_branch_line_counts_its_tokens() -> None:
    result = BranchResult(text="Yes.", finish_reason="stop", tokens=TokenCounts(generated=2))
    assert branch_line(BranchView("risks", "done", 1, result=result), 8, 60).plain == "✓ risks     2 tokens  Yes."


def test_events_as_plain_lines() -> None:
    assert event_line(PrefillProgress(done_tokens=512, total_tokens=3_500)) == "prefill: 512 of 3,500 tokens"
    done = PrefillDone(tokens=3_500, prefill_ms=4_100.0, reused=False)
    assert event_line(done) == "prefill: 3,500 tokens in 4.1 s"
    reused = done.model_copy(update={"reused": True})
    assert event_line(reused) == "prefill: none, a snapshot of 3,500 tokens is reused"
    restarted = BranchRestarted(branch="a\x1b[1m", attempt=2, reason="worker\nlost")
    assert event_line(restarted) == "a␛[1m: starts again (worker lost)"
    assert event_line(RunWarning(message="No worker.", hint="Start one.")) == "warning: No worker. Start one."


PREFIX_TOO_LONG = ErrorInfo(code="prefix_too_long", message="The document has 9 tokens.", hint="Shorten it.")
FAILED: dict[str, object] = {"state": "failed", "text": "", "finish_reason": "error", "error": PREFIX_TOO_LONG}


@pytest.mark.parametrize("terminal", [True, False])
def test_what_failed_the_whole_run_is_said_once(terminal: bool) -> None:
    failed = report(branch("a", **FAILED), branch("b", **FAILED), state="failed", error=PREFIX_TOO_LONG)
    text = drawn(lambda c: render.full_report(c, failed), terminal=terminal)
    assert text.count("The document has 9 tokens.") == 1
    assert text.count(" (failed)") == 2


def test_a_branch_that_failed_by_itself_says_why() -> None:
    failed = report(branch("a", **FAILED), branch("b"), state="completed_with_errors")
    text = drawn(lambda c: render.full_report(c, failed), terminal=False)
    assert text.count("The document has 9 tokens. Shorten it.") == 1


def test_a_followers_line_names_the_code_of_a_failure_for_the_report_says_it_in_full() -> None:
    result = BranchResult(finish_reason="error", error=PREFIX_TOO_LONG)
    event = BranchDone(branch="a", attempt=1, state="failed", result=result)
    assert event_line(event) == "a: failed (prefix_too_long)"


def test_the_last_words_are_those_of_running_branches_on_a_line_each() -> None:
    running = report(branch("a", state="running", text="one\n\x1b[2Jtwo " + "x" * 200 + " end"), branch("b"))
    text = drawn(lambda c: render.last_words(c, running), terminal=True, width=60)
    assert len(text.splitlines()) == 1
    assert ": …xxx" in text
    assert text.rstrip().endswith(" end")
