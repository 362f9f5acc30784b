"""One reading without a terminal: as text, and as a JSON document."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from swarmkv.monitor.top.columns import fit, ordered, row_line, title_line
from swarmkv.monitor.top.facts import alert_lines, fact_lines
from swarmkv.monitor.top.panels import PANELS, Panel
from swarmkv.monitor.top.reading import Reading

_MOST_ROWS = 20  # of a panel
_ALL = 1 << 16


def document(reading: Reading) -> dict[str, Any]:
    """The reading under the names of its fields, which docs/top.md lists."""
    return dataclasses.asdict(reading)


def text(reading: Reading, columns: int) -> str:
    """Head and all panels, one below the other, for `columns`."""
    lines = fact_lines(reading, columns, _ALL) + alert_lines(reading.alerts, columns, _ALL)
    for panel in PANELS:
        lines += [Text(), *_panel_lines(panel, reading, columns)]
    return "\n".join(line.plain.rstrip() for line in lines) + "\n"


def _panel_lines(panel: Panel[Any], reading: Reading, columns: int) -> list[Text]:
    rows = list(panel.rows(reading))
    if not rows:
        return [Text(f"{panel.title}: {panel.nothing}")]
    total = max(len(rows), reading.totals.runs) if panel.title == "Runs" else len(rows)
    fitted = fit(panel.columns, columns)
    column = panel.column(panel.sorted_by)
    shown = ordered(rows, column, descending=column.descending)[:_MOST_ROWS]
    hidden = Text(f"and {total - len(shown):,} more") if total > len(shown) else None
    return [
        Text(panel.title),
        title_line(fitted, column.title, descending=column.descending),
        *(row_line(row, fitted) for row in shown),
        *([hidden] if hidden else []),
    ]
