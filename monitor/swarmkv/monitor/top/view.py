"""What is looked at, and what a key changes in that: readings and keys go in, actions come out. No clock, no
terminal, no Redis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from swarmkv.monitor.top.columns import ordered
from swarmkv.monitor.top.panels import BRANCHES, PANELS, RUNS, WORKERS, Panel, branch_rows
from swarmkv.monitor.top.reading import Reading, RunRow, WorkerRow
from swarmkv.protocol.messages import FINAL_RUN_STATES, RunReport
from swarmkv.protocol.text import clean_line

_MAX_FILTER_CHARS = 60
_QUESTION_NAME_CHARS = 30


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program."""


@dataclass(frozen=True, slots=True)
class Redraw:
    """Draw everything anew, whatever is believed to stand on the screen."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Read the branches of the run that is looked at now, without waiting for the next reading."""


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str


@dataclass(frozen=True, slots=True)
class Retry:
    run_id: str


@dataclass(frozen=True, slots=True)
class Command:
    worker_id: str
    kind: str


Action = Quit | Redraw | Watch | Cancel | Retry | Command
Mode = Literal["browse", "filter", "confirm", "help"]


@dataclass(slots=True)
class Place:
    """Where the reader of a panel stands. `selected` None: on the first row, whichever that is."""

    sorted_by: str
    descending: bool
    filter_text: str = ""
    selected: str | None = None
    index: int = 0  # where the selected row was last
    top: int = 0  # the first row that is shown


@dataclass(frozen=True, slots=True)
class Listing:
    """The rows of a panel that pass its filter, in order; `index` is selected, `total` were there."""

    panel: Panel[Any]
    place: Place
    rows: list[Any]
    index: int
    total: int

    @property
    def selected(self) -> Any | None:
        """The row that keys act on."""
        return self.rows[self.index] if self.rows else None


def _place(panel: Panel[Any]) -> Place:
    return Place(panel.sorted_by, panel.column(panel.sorted_by).descending)


@dataclass(slots=True)
class View:
    """`page_rows` is how many rows the frame of now has room for; whoever draws says so."""

    can_command: bool = False
    reading: Reading | None = None
    panel: Panel[Any] = RUNS
    mode: Mode = "browse"
    is_frozen: bool = False
    watched_id: str | None = None
    watched: RunReport | None = None
    question: str = ""
    message: str = ""
    is_trouble: bool = False  # the message is about something that did not work
    page_rows: int = 10
    places: dict[str, Place] = field(
        default_factory=lambda: {panel.title: _place(panel) for panel in (*PANELS, BRANCHES)}
    )
    _asked: Action | None = None
    _late: Reading | None = None  # the newest reading while the screen is frozen

    def take(self, reading: Reading) -> None:
        """A new reading; a frozen screen keeps showing the old one."""
        self._late = reading
        if not self.is_frozen or self.reading is None:
            self.reading = reading

    def take_watched(self, report: RunReport) -> None:
        """The branches of a run; those of one that is no longer looked at are dropped."""
        if report.run_id == self.watched_id and not (self.is_frozen and self.watched):
            self.watched = report

    def say(self, message: str, *, is_trouble: bool = False) -> None:
        """A message that stays until the next key."""
        self.message, self.is_trouble = clean_line(message), is_trouble

    def press(self, key: str) -> Action | None:
        """What a key asks for beside a change of the view itself."""
        self.say("")
        return _MODES[self.mode](self, key)

    def listing(self) -> Listing:
        """The rows of the panel of now. The selection follows its row, or stays where the row was."""
        shown = BRANCHES if self.watched_id else self.panel
        place = self.places[shown.title]
        rows = self._rows(shown)
        wanted = place.filter_text.lower()
        found = [row for row in rows if wanted in shown.found_in(row).lower()] if wanted else rows
        found = ordered(found, shown.column(place.sorted_by), descending=place.descending)
        index = _index_of(found, place)
        place.index = index
        return Listing(shown, place, found, index, len(rows))

    @property
    def title(self) -> str:
        """The panel's; inside a run it is the branches'."""
        return BRANCHES.title if self.watched_id else self.panel.title

    def _rows(self, panel: Panel[Any]) -> list[Any]:
        if panel is BRANCHES:
            return branch_rows(self.watched) if self.watched else []
        return list(panel.rows(self.reading)) if self.reading else []

    def _ask(self, question: str, action: Action) -> None:
        self.mode, self.question, self._asked = "confirm", question, action


def _index_of(rows: list[Any], place: Place) -> int:
    if place.selected is None:
        return 0
    for index, row in enumerate(rows):
        if row.id == place.selected:
            return index
    # It has gone: the row that took its place is selected.
    index = max(0, min(place.index, len(rows) - 1))
    place.selected = rows[index].id if rows else None
    return index


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
    view.places[BRANCHES.title] = _place(BRANCHES)
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
        view.reading = view._late


def _begin_filter(view: View) -> None:
    view.mode = "filter"


def _help(view: View) -> None:
    view.mode = "help"


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
    view._ask(f"Cancel run {run_id} ({short})?", Cancel(run_id))


def _retry(view: View) -> Action | None:
    run = _run(view)
    return Retry(run[0]) if run else None


def _pause(view: View) -> Action | None:
    if (worker := _commanded(view)) is None:
        return None
    return Command(worker.id, "resume" if worker.state == "paused" else "pause")


def _drain(view: View) -> None:
    if worker := _commanded(view):
        view._ask(f"Drain worker {clean_line(worker.id)}? It ends when its jobs have.", Command(worker.id, "drain"))


def _commanded(view: View) -> WorkerRow | None:
    row = view.listing().selected if view.can_command else None
    return row if isinstance(row, WorkerRow) else None


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
    action, view._asked, view.mode = view._asked, None, "browse"
    if key in ("y", "Y"):
        return action
    view.say("Nothing was done.")
    return None


def _read_help(view: View, _key: str) -> Action | None:
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
    "p": _pause,
    "d": _drain,
}
_MODES: dict[Mode, Callable[[View, str], Action | None]] = {
    "browse": _browse,
    "filter": _filter,
    "confirm": _confirm,
    "help": _read_help,
}


def hints(view: View) -> list[tuple[str, str]]:
    """The keys that do something here, the most wanted first; the last ones are left out on narrow terminals."""
    keys = [("Esc", "back")] if view.watched_id else [("Tab", "panel")]
    if view.panel is RUNS:
        keys += [] if view.watched_id else [("Enter", "branches")]
        keys += [("c", "cancel"), ("r", "retry")]
    if view.panel is WORKERS and view.can_command:
        keys += [("p", "pause/resume"), ("d", "drain")]
    space = ("Space", "go on" if view.is_frozen else "freeze")
    return [("?", "help"), ("q", "quit"), *keys, ("s", "sort"), ("S", "reverse"), ("/", "filter"), space]
