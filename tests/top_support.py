"""Readings made up for the screen of `top`, and frames as plain lines."""

from __future__ import annotations

import random
from dataclasses import replace

from swarmkv.monitor.top.frame import Surroundings, draw
from swarmkv.monitor.top.reading import AlertRow, QueueRow, Reading, RunRow, SnapshotRow, Totals, WorkerRow
from swarmkv.monitor.top.view import View

TAKEN_MS = 1_790_000_000_000
NAMES = (
    "patent-7,302,114.pdf",
    "licence agreement",
    "TL-4 specification",
    "契約書レビュー",
    "Prüfbericht 🧪 émigré",
    "x" * 120,
)
TOTALS = Totals(
    decode_tokens_per_s=312.4,
    prefill_tokens_per_s=1_240.0,
    saved_tokens=24_976,
    saved_ms=53_500.0,
    saved_share=0.875,
    store_bytes=1_300_000_000,
    store_limit_bytes=4_294_967_296,
    runs=0,
    dead=3,
)
ALERTS = (
    AlertRow(
        "no_worker",
        "critical",
        "llama",
        "No prefill worker serves model 'llama'; 12 jobs wait, the oldest for 4 min.",
        "Start one: swarmkv worker prefill --model llama=PATH.",
    ),
    AlertRow("dead_letters", "warning", "", "3 branches were given up.", "`swarmkv dead ls` says why."),
)
QUEUES = (
    QueueRow("prefill", "default", 0, 1),
    QueueRow("branch", "default", 112, 22, 4.2),
    QueueRow("prefill", "llama", 12, 0, 240.0),
    QueueRow("branch", "llama", 0, 0),
)


def made_up(num_runs: int = 1_000) -> Reading:
    """A busy installation; the same at every call."""
    return Reading(
        taken_ms=TAKEN_MS,
        totals=replace(TOTALS, runs=num_runs),
        alerts=ALERTS,
        queues=QUEUES,
        workers=_workers(),
        runs=_runs(num_runs),
        snapshots=_snapshots(),
    )


def _runs(count: int) -> tuple[RunRow, ...]:
    draw_of = random.Random(7)
    states = ("running", "queued", "prefilling", "done", "done", "completed_with_errors", "failed", "cancelled")
    runs = []
    for number in range(count):
        state = states[number % len(states)]
        branches = draw_of.choice((1, 8, 50, 1_000))
        still_open = draw_of.randint(1, branches) if state in states[:3] else 0
        name = f"{NAMES[number % len(NAMES)]} {number}"
        runs.append(RunRow(f"{number:012x}", name, state, "default", branches, still_open, 2.5 * (number + 1)))
    return tuple(runs)


def _workers() -> tuple[WorkerRow, ...]:
    return tuple(
        WorkerRow(
            id=f"{role}-{number}",
            role=role,
            model="default",
            state="paused" if number == 2 else "running",
            host="atlas",
            pid=4_000 + number,
            slots=16 if role == "branch" else 1,
            slots_used=11 if role == "branch" else 1,
            cells=16_384,
            cells_used=9_120,
            residents=2,
            tokens_per_s=104.2 if role == "branch" else None,
            rss_bytes=412 << 20,
            age_s=7_400.0,
            beat_age_s=0.8,
            device="CPU",
            version="0.1.0",
        )
        for role, number in (("prefill", 1), ("branch", 1), ("branch", 2))
    )


def _snapshots() -> tuple[SnapshotRow, ...]:
    return tuple(
        SnapshotRow(
            id=f"{number:032x}"[::-1],
            models=("default",),
            documents=(f"{number:016x}",),
            tokens=3_568,
            size_bytes=18_700_000,
            age_s=600.0,
            unused_s=4.0 * number,
            hits=24,
            pinned=number == 1,
            needed=number < 3,
            resident_in=2,
            store="atlas:/dev/shm/swarmkv-1000",
        )
        for number in range(12)
    )


def frame(view: View, columns: int, lines: int, **around: object) -> list[str]:
    """What stands on a terminal of this size."""
    return [line.plain for line in draw(view, Surroundings(columns, lines, "unix:///run/broker.sock", **around))]  # type: ignore[arg-type]
