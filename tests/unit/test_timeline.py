"""The bars of a branch: which stretches of time are shown as what."""

from __future__ import annotations

import dataclasses

import pytest

from swarmkv.monitor.web.timeline import Axis, axis_of, segments
from swarmkv.protocol.ledger import BranchView, RunView
from swarmkv.protocol.ledger.inspection import PrefillView
from swarmkv.protocol.messages import BranchTimings

RUN = RunView(
    run_id="ab", name="n", state="running", model="m", document_name="", document="d", document_bytes=1,
    document_tokens=10, branches=1, open=1, done=0, failed=0, cancelled=0, created_ms=1_000, opened_ms=1_000,
    finished_ms=0, deadline_ms=90_000, now_ms=6_000, prefills_run=1, prefill_ms=900, snapshot_prefill_ms=900,
    snapshot="s", error=None, prefill=PrefillView("ready", 1_200, "p"),
)  # fmt: skip
DONE = BranchView(
    index=0, name="b", state="done", attempts=1, worker="w", ready_ms=2_200, started_ms=2_250, prompt="?",
    prompt_chars=1, timings_ms=BranchTimings(queue=50, restore=10, prompt=60, first_token=80, total=1_000),
)  # fmt: skip


def shown(run: RunView, branch: BranchView) -> list[tuple[str, float, float]]:
    return [(item.kind, item.start_ms - 1_000, item.end_ms - 1_000) for item in segments(run, branch)]


def test_a_branch_that_is_done_shows_every_stage_without_a_gap() -> None:
    assert shown(RUN, DONE) == [
        ("wait", 0, 200),
        ("prefill", 200, 1_200),
        ("queue", 1_200, 1_250),
        ("restore", 1_250, 1_260),
        ("prompt", 1_260, 1_310),
        ("decode", 1_310, 2_250),
    ]


def test_a_branch_whose_snapshot_was_there_shows_no_prefill() -> None:
    ready = dataclasses.replace(DONE, ready_ms=1_000, started_ms=1_050)
    assert [kind for kind, *_ in shown(RUN, ready)] == ["queue", "restore", "prompt", "decode"]


def test_one_that_waits_is_queued_or_works_grows_until_now() -> None:
    waiting = dataclasses.replace(DONE, state="waiting", ready_ms=0, started_ms=0)
    assert shown(RUN, waiting)[-1] == ("prefill", 200, 5_000)
    assert shown(RUN, dataclasses.replace(DONE, state="queued", started_ms=0))[-1] == ("queue", 1_200, 5_000)
    working = dataclasses.replace(DONE, state="running", timings_ms=BranchTimings())
    assert shown(RUN, working)[-1] == ("work", 1_250, 5_000)


def test_a_prefill_that_was_running_before_the_run_came_starts_with_it() -> None:
    joined = dataclasses.replace(RUN, prefill=PrefillView("ready", 400, "p"))
    assert shown(joined, DONE)[0] == ("prefill", 0, 1_200)


def test_a_later_attempt_shows_the_time_that_earlier_ones_took() -> None:
    again = dataclasses.replace(DONE, attempts=2, ready_ms=4_000, started_ms=4_100)
    assert ("earlier", 1_100, 3_000) in shown(RUN, again)


def test_what_ended_before_the_run_was_tried_again_shows_nothing() -> None:
    reopened = dataclasses.replace(RUN, opened_ms=5_000)
    assert shown(reopened, DONE) == []


@pytest.mark.parametrize(
    ("length_ms", "shown_ms"), [(1, 1), (900, 1_000), (1_100, 1_500), (5_000, 5_000), (61_000, 80_000)]
)
def test_the_axis_of_a_run_that_goes_on_has_a_round_length(length_ms: int, shown_ms: float) -> None:
    run = dataclasses.replace(RUN, now_ms=1_000 + length_ms)
    assert axis_of(run).length_ms == shown_ms
    assert axis_of(dataclasses.replace(run, state="done", finished_ms=run.now_ms)).length_ms == length_ms


def test_bars_lie_on_the_axis_and_what_took_no_time_is_seen() -> None:
    bars = Axis(1_000, 2_000).bars(segments(RUN, DONE))
    assert all(bar.x >= 0 and bar.x + bar.width <= 1_000 and bar.width >= 1.5 for bar in bars)
    assert [bar.title for bar in bars][:2] == ["wait 200 ms", "prefill 1.00 s"]
