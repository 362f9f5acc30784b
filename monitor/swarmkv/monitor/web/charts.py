"""Small charts: a bar a minute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarmkv.monitor.overview import HOUR_MINUTES, Minute
from swarmkv.monitor.web.formats import count

WIDTH, HEIGHT = 600.0, 44.0
GAP = 2.0
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One minute, in units of the drawing."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The last hour; `peak` is its highest minute."""

    bars: tuple[ChartBar, ...]
    peak: float


def hour_chart(minutes: Sequence[Minute], now_ms: int, value: Callable[[Minute], float], unit: str) -> Chart:
    """A bar for each stretch of the last hour that has something, at its place in time."""
    start_ms = now_ms - HOUR_MINUTES * MINUTE_MS
    peak = max((value(minute) for minute in minutes), default=0.0)
    bars: list[ChartBar] = []
    for minute in minutes:
        left = max(0.0, (minute.start_ms - start_ms) / (HOUR_MINUTES * MINUTE_MS) * WIDTH)
        width = min(WIDTH - left, minute.length_s * 1000 / (HOUR_MINUTES * MINUTE_MS) * WIDTH)
        height = value(minute) / peak * HEIGHT if peak else 0.0
        if height > 0 and width > 0:
            title = f"{count(value(minute))} {unit} a minute"
            shown = max(1.5, height)
            bars.append(
                ChartBar(
                    round(left, 1),
                    round(HEIGHT - shown, 1),
                    round(max(1.0, width - GAP), 1),
                    round(shown, 1),
                    title,
                )
            )
    return Chart(tuple(bars), peak)
