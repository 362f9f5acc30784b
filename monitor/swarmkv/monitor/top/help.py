"""The pages behind `?` and `a`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from swarmkv.monitor.top.facts import ALERT_STYLES
from swarmkv.monitor.top.reading import AlertRow
from swarmkv.monitor.top.wrapping import wrapped
from swarmkv.protocol.text import clean_line

_KEY_COLUMNS = 16
_KEYS = (
    ("1 2 3 4, Tab", "queues, workers, runs, snapshots"),
    ("↑ ↓ PgUp PgDn", "select a row; Home and End; j and k"),
    ("Enter, Esc", "the branches of a run; back"),
    ("s, S", "sort by the next column; the other way round"),
    ("/", "show only rows that contain a text"),
    ("c", "cancel the run; asks first"),
    ("r", "queue again what failed of the run"),
    ("p", "pause a worker: it takes no new job; pin a snapshot; or undo it"),
    ("d", "drain a worker: it ends when its jobs have; drop a snapshot; asks"),
    ("a", "all alerts, and what to do about them"),
    ("Space", "freeze the screen; go on"),
    ("Ctrl-L", "draw everything anew"),
    ("?, q", "this page; quit"),
)
_WORDS = (
    ("saved", "prefill that sharing avoided, since the database was made"),
    ("oldest", "how long the oldest waiting job has waited"),
    ("resident", "snapshots in a worker's KV cache, ready to be forked"),
)


def help_lines() -> list[Text]:
    """Keys, then words; one line each."""
    return [*(_line(*row) for row in _KEYS), Text(), *(_line(*row) for row in _WORDS)]


def alert_page(alerts: Sequence[AlertRow], columns: int) -> list[Text]:
    """Every alert with its remedy, wrapped."""
    if not alerts:
        return [Text("Nothing needs to be looked at.", style="green")]
    lines: list[Text] = []
    for alert in alerts:
        lines += wrapped(Text(clean_line(alert.message), style=ALERT_STYLES.get(alert.severity, "")), columns)
        lines += wrapped(Text(clean_line(alert.remedy), style="dim"), columns)
        lines.append(Text())
    return lines


def _line(key: str, what: str) -> Text:
    return Text.assemble((f"  {key:<{_KEY_COLUMNS}}", "bold"), what)
