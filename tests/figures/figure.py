"""One measured row, and how rows are shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """`measured` is for readers; `values` holds the numbers it was made from, units in their names."""

    what: str
    must: str
    measured: str
    is_ok: bool
    values: dict[str, Any] = field(default_factory=dict)


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def show(console: Console, facts: dict[str, Any], figures: Sequence[Figure]) -> None:
    """A table of all rows."""
    table = Table("what", "must show", "measured", "", title=", ".join(f"{k}: {v}" for k, v in facts.items()))
    for figure in figures:
        verdict = "[green]ok[/]" if figure.is_ok else "[red]falls short[/]"
        table.add_row(figure.what, figure.must, figure.measured, verdict, end_section=True)
    console.print(table)


def as_json(facts: dict[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """The same for programs."""
    return {"machine": facts, "figures": [asdict(figure) for figure in figures]}


def middle(values: Sequence[float]) -> float:
    """The median, rounded to what a reader can use."""
    return round(median(values), 4)


def share(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
