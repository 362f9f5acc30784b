"""Following a run on a terminal, in a pipe, and as JSON lines; the run is played from a list of events."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import cast

import pytest
from rich.console import Console

from swarmkv.cli import live, output
from swarmkv.producer import RunHandle, RunReport
from swarmkv.protocol.events import (
    BranchDone,
    BranchStarted,
    BranchText,
    Event,
    PrefillDone,
    PrefillProgress,
    RunDone,
    RunWarning,
)
from swarmkv.protocol.messages import BranchResult, TokenCounts
from tests.unit.test_cli_render import branch, report

EVENTS: tuple[Event, ...] = (
    RunWarning(message="No worker is alive.", hint="Start one."),
    *(PrefillProgress(done_tokens=done, total_tokens=1_000) for done in range(0, 1_001, 10)),
    PrefillDone(tokens=1_000, prefill_ms=2_000.0, reused=False),
    BranchStarted(branch="risks", attempt=1, worker="branch-1"),
    BranchText(branch="risks", attempt=1, offset=0, text="Two [red]risks\x1b[2J"),
    BranchDone(
        branch="risks",
        attempt=1,
        state="done",
        result=BranchResult(text="Two [red]risks\x1b[2J", finish_reason="stop", tokens=TokenCounts(generated=5)),
    ),
    RunDone(state="done"),
)


class Played:
    """Stands in for a RunHandle."""

    id = "0123456789ab"

    def __init__(self) -> None:
        self.final = report(branch("risks"))

    async def report(self) -> RunReport:
        return self.final

    async def results(self) -> RunReport:
        return self.final

    async def events(self) -> AsyncIterator[Event]:
        for event in EVENTS:
            yield event


@pytest.fixture
def run() -> RunHandle:
    return cast(RunHandle, Played())


def console_of(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, height=24, markup=False, highlight=False)
    monkeypatch.setattr(output, "stderr", lambda: console)
    return file


async def test_a_terminal_shows_the_picture_and_keeps_the_last_one_if_asked(
    run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = console_of(monkeypatch, terminal=True)
    assert await live.follow(run, keep_frame=True) == await run.report()
    last = file.getvalue()[-1_500:]
    for part in ("1,000 tokens  2.0 s", "risks", "5 tokens", "Two [red]risks␛[2J", "1 of 1 answers", "! No worker"):
        assert part in last
    assert "\x1b[2J" not in file.getvalue()


async def test_a_pipe_gets_a_line_for_each_quarter_of_the_prefill_and_each_step(
    run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = console_of(monkeypatch, terminal=False)
    await live.follow(run)
    assert file.getvalue().splitlines() == [
        "warning: No worker is alive. Start one.",
        "prefill: 250 of 1,000 tokens",
        "prefill: 500 of 1,000 tokens",
        "prefill: 750 of 1,000 tokens",
        "prefill: 1,000 of 1,000 tokens",
        "prefill: 1,000 tokens in 2.0 s",
        "risks: started by branch-1",
        "risks: done, 5 tokens",
    ]


async def test_json_lines_are_the_events_and_then_the_report(
    run: RunHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    await live.stream_json(run)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(EVENTS) + 1
    assert lines[-1] == {"type": "report", **(await run.report()).model_dump(mode="json")}


async def test_waiting_on_a_terminal_shows_a_sign_of_life(run: RunHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    console_of(monkeypatch, terminal=True)
    assert await live.wait(run) == await run.report()
