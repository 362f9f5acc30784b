"""What is looked at: readings go in, rows come out. No clock, no terminal, no Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from swarmkv.monitor.top.actions import Action
from swarmkv.monitor.top.columns import ordered
from swarmkv.monitor.top.panels import BRANCHES, PANELS, RUNS, Panel, branch_rows
from swarmkv.monitor.top.reading import Reading
from swarmkv.protocol.messages import RunReport
from swarmkv.protocol.text import clean_line

Mode = Literal["browse", "filter", "confirm", "help", "alerts"]


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


def place_of(panel: Panel[Any]) -> Place:
    """Where one begins to read a panel."""
    return Place(panel.sorted_by, panel.column(panel.sorted_by).descending)


@dataclass(slots=True)
class View:
    """`page_rows` is how many rows the frame of now has room for; whoever draws says so."""

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
        default_factory=lambda: {panel.title: place_of(panel) for panel in (*PANELS, BRANCHES)}
    )
    asked: Action | None = None  # what the question is about
    late: Reading | None = None  # the newest reading while the screen is frozen

    def take(self, reading: Reading) -> None:
        """A new reading; a frozen screen keeps showing the old one."""
        self.late = reading
        if not self.is_frozen or self.reading is None:
            self.reading = reading

    def take_watched(self, report: RunReport) -> None:
        """The branches of a run; those of one that is no longer looked at are dropped."""
        if report.run_id == self.watched_id and not (self.is_frozen and self.watched):
            self.watched = report

    def say(self, message: str, *, is_trouble: bool = False) -> None:
        """A message that stays until the next key."""
        self.message, self.is_trouble = clean_line(message), is_trouble

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
