"""When each branch waited, and for what: bars on one axis for all branches of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarmkv.monitor.web.formats import duration
from swarmkv.protocol.ledger import BranchView, RunView

Kind = Literal["wait", "prefill", "earlier", "queue", "restore", "prompt", "decode", "work"]
WIDTH = 1000.0  # of the axis, in units of the drawing
MIN_WIDTH = 1.5  # of a bar: what took no time is seen as well
TICKS = 4
LABELS: dict[Kind, str] = {
    "wait": "wait",
    "prefill": "prefill",
    "earlier": "earlier attempts",
    "queue": "queue",
    "restore": "restore",
    "prompt": "prompt",
    "decode": "decode",
    "work": "at work",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time of one kind, in milliseconds of Redis' clock."""

    kind: Kind
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A segment as drawn; `x` and `width` of WIDTH."""

    kind: Kind
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that is shown: from the run's beginning (or its last retry) to a round length behind."""

    start_ms: int
    length_ms: float

    @property
    def ticks(self) -> list[str]:
        """Labels from left to right, at equal distances."""
        return [duration(self.length_ms * number / TICKS) if number else "0" for number in range(TICKS + 1)]

    def bars(self, segments: list[Segment]) -> list[Bar]:
        """What of the segments lies on the axis."""
        return [bar for segment in segments if (bar := self._bar(segment)) is not None]

    def _bar(self, segment: Segment) -> Bar | None:
        scale = WIDTH / self.length_ms
        left = max(0.0, (segment.start_ms - self.start_ms) * scale)
        right = min(WIDTH, (segment.end_ms - self.start_ms) * scale)
        if right < 0 or left > WIDTH:
            return None
        width = min(WIDTH - left, max(MIN_WIDTH, right - left))
        title = f"{LABELS[segment.kind]} {duration(segment.end_ms - segment.start_ms)}"
        return Bar(segment.kind, round(left, 1), round(width, 1), title)


def axis_of(run: RunView) -> Axis:
    """Its length is rounded up, so that it changes rarely while the run goes on."""
    return Axis(run.opened_ms, _round_up(max(1, run.end_ms - run.opened_ms), is_exact=run.is_finished))


def segments(run: RunView, branch: BranchView) -> list[Segment]:
    """The life of a branch's last attempt."""
    begin, end = run.opened_ms, run.end_ms
    if branch.is_finished and branch.ready_ms and branch.ready_ms < begin:
        return []  # it ended before the run was tried again
    if branch.state == "waiting" or not branch.ready_ms:
        return [] if branch.is_finished else _positive(_before(run, branch, end))
    found = _before(run, branch, branch.ready_ms)
    if branch.state == "queued":
        found.append(Segment("queue", branch.ready_ms, end))
    elif branch.started_ms >= branch.ready_ms:
        found.append(Segment("queue", branch.ready_ms, branch.started_ms))
        found += _work(branch, end)
    return _positive(found)


def _before(run: RunView, branch: BranchView, until_ms: int) -> list[Segment]:
    """From the beginning until the branch was ready: waiting, and the prefill."""
    begin, prefill_ms = run.opened_ms, run.prefill.started_ms
    if not prefill_ms or prefill_ms >= until_ms or until_ms <= begin or run.prefill.state == "queued":
        return [Segment("wait", begin, until_ms)]
    start = max(begin, prefill_ms)
    if branch.attempts <= 1:
        return [Segment("wait", begin, start), Segment("prefill", start, until_ms)]
    middle = max(start, min(until_ms, int(prefill_ms + run.snapshot_prefill_ms)))
    return [Segment("wait", begin, start), Segment("prefill", start, middle), Segment("earlier", middle, until_ms)]


def _work(branch: BranchView, end_ms: int) -> list[Segment]:
    """From the job's start on: what it took is known at its end only."""
    start, times = branch.started_ms, branch.timings_ms
    if not branch.is_finished:
        return [Segment("work", start, end_ms)]
    if not times.total:
        return []
    points = (start, start + times.restore, start + times.prompt, start + times.total)
    kinds: tuple[Kind, ...] = ("restore", "prompt", "decode")
    return [Segment(kind, a, max(a, b)) for kind, a, b in zip(kinds, points, points[1:], strict=False)]


def _positive(found: list[Segment]) -> list[Segment]:
    return [segment for segment in found if segment.end_ms > segment.start_ms]


def _round_up(length_ms: float, *, is_exact: bool) -> float:
    if is_exact:
        return length_ms
    step = 1.0
    while step * 10 < length_ms:
        step *= 10
    return next(step * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * factor >= length_ms)
