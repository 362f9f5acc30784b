"""The page behind `?`."""

from __future__ import annotations

from rich.text import Text

_KEY_COLUMNS = 16
_KEYS = (
    ("1 2 3 4, Tab", "queues, workers, runs, snapshots"),
    ("↑ ↓ PgUp PgDn", "select a row; Home and End; j and k"),
    ("Enter, Esc", "the branches of a run; back"),
    ("s, S", "sort by the next column; the other way round"),
    ("/", "show only rows that contain a text"),
    ("c", "cancel the run; asks first"),
    ("r", "queue again what failed of the run"),
    ("Space", "freeze the screen; go on"),
    ("Ctrl-L", "draw everything anew"),
    ("?, q", "this page; quit"),
)
_COMMANDS = (
    ("p", "pause the worker: it takes no new job; go on"),
    ("d", "drain the worker: it ends when its jobs have; asks first"),
)
_WORDS = (
    ("saved", "prefill that sharing avoided, since the database was made"),
    ("oldest", "how long the oldest waiting job has waited"),
    ("resident", "snapshots in a worker's KV cache, ready to be forked"),
)


def help_lines(*, can_command: bool) -> list[Text]:
    """Keys, then words; one line each."""
    keys = _KEYS[:7] + (_COMMANDS if can_command else ()) + _KEYS[7:]
    return [Text(), *(_line(*row) for row in keys), Text(), *(_line(*row) for row in _WORDS)]


def _line(key: str, what: str) -> Text:
    return Text.assemble((f"  {key:<{_KEY_COLUMNS}}", "bold"), what)
