"""What each key does: it changes what is looked at, or asks for an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarmkv.monitor.top.actions import Action, Cancel, Order, Quit, Redraw, Retry, Watch
from swarmkv.monitor.top.panels import BRANCHES, KEY_COLUMNS, PANELS, RUNS, SNAPSHOTS, WORKERS, Panel
from swarmkv.monitor.top.reading import RunRow, SnapshotRow, WorkerRow
from swarmkv.monitor.top.view import Mode, View, place_of
from swarmkv.protocol.messages import FINAL_RUN_STATES
from swarmkv.protocol.text import clean_line

_MAX_FILTER_CHARS = 60
_QUESTION_NAME_CHARS = 30


def press(view: View, key: str) -> Action | None:
    """What a key asks for beside a change of the view itself."""
    view.say("")
    return _MODES[view.mode](view, key)


def _browse(view: View, key: str) -> Action | None:
    if key in _MOVES:
        _move(view, key)
        return None
    if key in _KEYS:
        return _KEYS[key](view)
    if key.isdigit() and 1 <= int(key) <= len(PANELS):
        _show(view, PANELS[int(key) - 1])
    return None


def _move(view: View, key: str) -> None:
    listing = view.listing()
    if listing.rows:
        rows, pages = _MOVES[key]
        index = max(0, min(listing.index + rows + pages * view.page_rows, len(listing.rows) - 1))
        # Whoever goes to the very first row by a jump stays on it, whatever becomes the first.
        listing.place.selected = listing.rows[index].id if index else None
        listing.place.index = index


def _show(view: View, panel: Panel[Any]) -> None:
    view.panel = panel
    _leave(view)


def _step_panel(step: int) -> Callable[[View], None]:
    return lambda view: _show(view, PANELS[(PANELS.index(view.panel) + step) % len(PANELS)])


def _leave(view: View) -> None:
    view.watched_id = view.watched = None


def _back(view: View) -> None:
    """One step out: of the filter first, then of the run."""
    place = view.places[view.title]
    if place.filter_text:
        place.filter_text = ""
    else:
        _leave(view)


def _enter(view: View) -> Action | None:
    selected = view.listing().selected
    if not isinstance(selected, RunRow):
        return None
    view.watched_id, view.watched = selected.id, None
    view.places[BRANCHES.title] = place_of(BRANCHES)
    return Watch()


def _sort(view: View) -> None:
    """By the next column, in the direction that it is usually looked at."""
    listing = view.listing()
    titles = [column.title for column in listing.panel.columns]
    title = titles[(titles.index(listing.place.sorted_by) + 1) % len(titles)]
    listing.place.sorted_by = title
    listing.place.descending = listing.panel.column(title).descending


def _reverse(view: View) -> None:
    place = view.places[view.title]
    place.descending = not place.descending


def _freeze(view: View) -> None:
    view.is_frozen = not view.is_frozen
    if not view.is_frozen:
        view.reading = view.late


def _begin_filter(view: View) -> None:
    view.mode = "filter"


def _help(view: View) -> None:
    view.mode = "help"


def _alerts(view: View) -> None:
    view.mode = "alerts"


def _run(view: View) -> tuple[str, str, str] | None:
    """Id, name and state of the run that keys act on: the one that is looked at, or the selected one."""
    if view.watched_id:
        return (view.watched_id, view.watched.name, view.watched.state) if view.watched else None
    row = view.listing().selected
    return (row.id, row.name, row.state) if isinstance(row, RunRow) else None


def _cancel(view: View) -> None:
    if (run := _run(view)) is None:
        return
    run_id, name, state = run
    if state in FINAL_RUN_STATES:
        view.say(f"Run {run_id} has already ended: {state}.")
        return
    name = clean_line(name)
    short = name if len(name) <= _QUESTION_NAME_CHARS else name[: _QUESTION_NAME_CHARS - 1] + "…"
    _ask(view, f"Cancel run {run_id} ({short})?", Cancel(run_id))


def _retry(view: View) -> Action | None:
    run = _run(view)
    return Retry(run[0]) if run else None


def _hold(view: View) -> Action | None:
    """Pause a worker, pin a snapshot; or undo it."""
    match view.listing().selected:
        case WorkerRow() as worker:
            return Order("resume" if worker.state == "paused" else "pause", worker.id)
        case SnapshotRow() as snapshot:
            return Order("unpin" if snapshot.pinned else "pin", snapshot.id)
        case _:
            return None


def _let_go(view: View) -> None:
    """Drain a worker, drop a snapshot."""
    match view.listing().selected:
        case WorkerRow() as worker:
            name = clean_line(worker.id)
            _ask(view, f"Drain worker {name}? It ends when its jobs have.", Order("drain", worker.id))
        case SnapshotRow() as snapshot:
            _ask(view, f"Drop snapshot {snapshot.id[:KEY_COLUMNS]}?", Order("drop", snapshot.id))


def _ask(view: View, question: str, action: Action) -> None:
    view.mode, view.question, view.asked = "confirm", question, action


def _filter(view: View, key: str) -> Action | None:
    place = view.places[view.title]
    if key == "enter":
        view.mode = "browse"
    elif key == "escape":
        view.mode, place.filter_text = "browse", ""
    elif key == "backspace":
        place.filter_text = place.filter_text[:-1]
    elif key == "clear":
        place.filter_text = ""
    elif len(key) == 1:
        place.filter_text = (place.filter_text + key)[:_MAX_FILTER_CHARS]
    elif key in _MOVES:
        _move(view, key)
    return None


def _confirm(view: View, key: str) -> Action | None:
    action, view.asked, view.mode = view.asked, None, "browse"
    if key in ("y", "Y"):
        return action
    view.say("Nothing was done.")
    return None


def _read_page(view: View, _key: str) -> Action | None:
    view.mode = "browse"
    return None


_ALL_ROWS = 1 << 30
_MOVES: dict[str, tuple[int, int]] = {  # rows and pages
    "up": (-1, 0),
    "k": (-1, 0),
    "down": (1, 0),
    "j": (1, 0),
    "pageup": (0, -1),
    "pagedown": (0, 1),
    "home": (-_ALL_ROWS, 0),
    "end": (_ALL_ROWS, 0),
}
_KEYS: dict[str, Callable[[View], Action | None]] = {
    "q": lambda _view: Quit(),
    "redraw": lambda _view: Redraw(),
    "tab": _step_panel(1),
    "backtab": _step_panel(-1),
    "right": _step_panel(1),
    "left": _step_panel(-1),
    "escape": _back,
    "backspace": _back,
    "enter": _enter,
    "s": _sort,
    "S": _reverse,
    "/": _begin_filter,
    "?": _help,
    "h": _help,
    " ": _freeze,
    "c": _cancel,
    "r": _retry,
    "p": _hold,
    "d": _let_go,
    "a": _alerts,
}
_MODES: dict[Mode, Callable[[View, str], Action | None]] = {
    "browse": _browse,
    "filter": _filter,
    "confirm": _confirm,
    "help": _read_page,
    "alerts": _read_page,
}


def hints(view: View) -> list[tuple[str, str]]:
    """The keys that do something here, the most wanted first; the last ones are left out on narrow terminals."""
    keys = [("Esc", "back")] if view.watched_id else [("Tab", "panel")]
    if view.panel is RUNS:
        keys += [] if view.watched_id else [("Enter", "branches")]
        keys += [("c", "cancel"), ("r", "retry")]
    if view.panel is WORKERS:
        keys += [("p", "pause/resume"), ("d", "drain")]
    if view.panel is SNAPSHOTS:
        keys += [("p", "pin/unpin"), ("d", "drop")]
    if view.reading and view.reading.alerts:
        keys += [("a", "alerts")]
    space = ("Space", "go on" if view.is_frozen else "freeze")
    return [("?", "help"), ("q", "quit"), *keys, ("s", "sort"), ("S", "reverse"), ("/", "filter"), space]
