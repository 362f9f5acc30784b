"""One frame: what is looked at as exactly as many lines, of exactly as many columns, as the terminal has.

title      which Redis, since when
facts      queues on the left, what was saved on the right
alerts     in words
tabs       the panels; the filter
table      its titles, its rows, what the selected branch says
footer     a question, a message, or the keys
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from rich.text import Text

from swarmkv.monitor.top import figures
from swarmkv.monitor.top.columns import fit, row_line, title_line
from swarmkv.monitor.top.facts import alert_lines, fact_lines
from swarmkv.monitor.top.help import alert_page, help_lines
from swarmkv.monitor.top.keys import hints
from swarmkv.monitor.top.panels import PANELS, BranchRow, said, state_text
from swarmkv.monitor.top.view import Listing, View
from swarmkv.monitor.top.wrapping import wrapped
from swarmkv.protocol.text import clean_line

LEAST_COLUMNS, LEAST_LINES = 20, 6
_BAR_STYLE = "bold black on green"  # without colours it is not taken for the selected row, which is reversed
_MAX_SAID_LINES = 6
_SHORT_TAB_CHARS = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a frame needs beside the view: the size, which Redis, and what is wrong with it, if anything."""

    columns: int
    lines: int
    address: str = ""
    outage: str = ""
    outage_s: float = 0.0


def draw(view: View, around: Surroundings) -> list[Text]:
    """The frame, from top to bottom. Tells the view how many rows it had room for."""
    if around.columns < LEAST_COLUMNS or around.lines < LEAST_LINES:
        return _sized([Text(f"At least {LEAST_COLUMNS}x{LEAST_LINES}, please.")], around)
    page = _page(view, around.columns)
    head = [_title(view, around), *([] if page else _facts(view, around))]
    foot = [_footer(view, around.columns)]
    room = around.lines - len(head) - len(foot)
    body = page or _body(view, around.columns, room)
    return _sized([*head, *body[:room], *[Text()] * (room - len(body)), *foot], around)


def _page(view: View, columns: int) -> list[Text]:
    """What takes the place of the panel; nothing if it is there."""
    if view.mode == "help":
        return help_lines()
    return alert_page(view.reading.alerts if view.reading else (), columns) if view.mode == "alerts" else []


def _sized(lines: list[Text], around: Surroundings) -> list[Text]:
    """Cut and filled to the size of the terminal."""
    shown = [*lines[: around.lines], *[Text()] * (around.lines - len(lines))]
    for line in shown:
        line.truncate(around.columns, overflow="ellipsis", pad=True)
    return [line.copy() for line in shown]


def _title(view: View, around: Surroundings) -> Text:
    left = Text.assemble(("swarmkv top", "bold"), ("  " + clean_line(around.address), "dim"))
    right = _pulse(view, around)
    left.truncate(max(0, around.columns - right.cell_len - 1), overflow="ellipsis", pad=True)
    return left + Text(" ") + right


def _pulse(view: View, around: Surroundings) -> Text:
    """The time of what is shown, and whether it still moves."""
    if view.reading is None:
        return Text("connecting", style="yellow")
    moment = datetime.datetime.fromtimestamp(view.reading.taken_ms / 1_000).astimezone()
    clock = moment.strftime("%H:%M:%S")
    if view.is_frozen:
        return Text.assemble((" frozen ", "black on yellow"), " ", clock)
    return Text.assemble((clock, "yellow" if around.outage else ""))


def _facts(view: View, around: Surroundings) -> list[Text]:
    """What is wrong, then the sums: never more than the table leaves, which needs its half."""
    lines = [_outage_line(around)] if around.outage else []
    if view.reading is not None:
        room = max(2, around.lines // 3)
        lines += fact_lines(view.reading, around.columns, room)
        lines += alert_lines(view.reading.alerts, around.columns, max(1, around.lines // 8))
    return lines[: max(0, around.lines - 4)]


def _outage_line(around: Surroundings) -> Text:
    since = f"Out of touch for {figures.age(around.outage_s)}: "
    return Text(since + clean_line(around.outage), style="bold red", no_wrap=True)


def _body(view: View, columns: int, room: int) -> list[Text]:
    listing = view.listing()
    said_lines = _said(listing, columns, room // 3)
    tabs = _run_line(view) if view.watched_id else _tabs(view, columns)
    view.page_rows = max(1, room - 2 - len(said_lines))
    fitted = fit(listing.panel.columns, columns)
    titles = title_line(fitted, listing.place.sorted_by, descending=listing.place.descending)
    titles.truncate(columns, pad=True)
    titles.stylize(_BAR_STYLE)
    rows = _rows(listing, columns, view.page_rows)
    rows += [Text()] * (view.page_rows - len(rows)) if said_lines else []
    return [_with_filter(tabs, view, listing, columns), titles, *(rows or [_nothing(view, listing)]), *said_lines]


def _rows(listing: Listing, columns: int, page_rows: int) -> list[Text]:
    """The rows of the page that the selected one is on; scrolled no further than needed."""
    place = listing.place
    place.top = min(max(place.top, listing.index - page_rows + 1), listing.index)
    place.top = max(0, min(place.top, len(listing.rows) - page_rows))
    fitted = fit(listing.panel.columns, columns)
    lines = []
    for number, row in enumerate(listing.rows[place.top : place.top + page_rows], place.top):
        line = row_line(row, fitted)
        if number == listing.index:
            line = Text(line.plain, no_wrap=True)  # one colour: a reversed red is hard to read
            line.truncate(columns, pad=True)
            line.stylize("reverse")
        lines.append(line)
    return lines


def _nothing(view: View, listing: Listing) -> Text:
    if view.reading is None or (view.watched_id and view.watched is None):
        return Text("…", style="dim")
    if listing.total:
        return Text(f"None of {listing.total:,} contains {listing.place.filter_text!r}.", style="dim")
    return Text(listing.panel.nothing, style="dim")


def _said(listing: Listing, columns: int, room: int) -> list[Text]:
    """The end of what the selected branch says, or its error."""
    row = listing.selected
    if not isinstance(row, BranchRow) or room < 2:
        return []
    num_lines = min(room, _MAX_SAID_LINES)
    text = Text(said(row), style="red" if row.branch.error else "")
    lines = wrapped(text, columns)
    if row.branch.error is None:
        lines = lines[-(num_lines - 1) :]
    shown = lines[: num_lines - 1] or [Text("Nothing yet.", style="dim")]
    head = Text.assemble("── ", (clean_line(row.branch.name), "bold"), " ", state_text(row.branch.state), " ")
    head.truncate(columns - 1, overflow="ellipsis")
    head.append("─" * (columns - head.cell_len), style="dim")
    return [head, *shown, *[Text()] * (num_lines - 1 - len(shown))]


def _tabs(view: View, columns: int) -> Text:
    counts = _counts(view)
    line = Text(no_wrap=True)
    is_wide = columns >= sum(len(panel.title) + 6 for panel in PANELS) + sum(map(len, counts)) + 8
    for number, (panel, count) in enumerate(zip(PANELS, counts, strict=True), 1):
        is_shown = panel is view.panel
        name = f"{panel.title} {count}".rstrip() if is_wide or is_shown else panel.title[:_SHORT_TAB_CHARS]
        line.append(f" {number} {name} ", style="bold reverse" if is_shown else "")
        line.append(" ")
    return line


def _counts(view: View) -> list[str]:
    reading = view.reading
    if reading is None:
        return [""] * len(PANELS)
    return [
        str(len(reading.queues)),
        str(len(reading.workers)),
        f"{reading.totals.runs:,}",
        f"{len(reading.snapshots):,}",
    ]


def _run_line(view: View) -> Text:
    line = Text.assemble(("Run ", "bold"), (view.watched_id or "", "bold"), " ")
    if view.watched is None:
        return line
    report = view.watched
    line.append_text(state_text(report.state))
    line.append(f" {clean_line(report.name)}")
    ended = sum(branch.state in ("done", "failed", "cancelled") for branch in report.branches)
    line.append(f"  {ended:,}/{len(report):,} ended", style="dim")
    if report.document_tokens:
        line.append(f"  {report.document_tokens:,} tokens", style="dim")
    if report.error:
        line.append("  " + clean_line(report.error.message), style="red")
    return line


def _with_filter(line: Text, view: View, listing: Listing, columns: int) -> Text:
    text = listing.place.filter_text
    if not text and view.mode != "filter":
        return line
    cursor = "▏" if view.mode == "filter" else ""
    note = Text.assemble(
        (f"/{text}{cursor}", "bold yellow"), (f"  {len(listing.rows):,} of {listing.total:,} ", "dim")
    )
    note.truncate(max(1, columns // 2), overflow="ellipsis")
    line.truncate(columns - note.cell_len - 1, pad=True, overflow="ellipsis")
    return line + Text(" ") + note


def _footer(view: View, columns: int) -> Text:
    if view.mode == "confirm":
        return Text.assemble((view.question, "bold yellow"), "  ", ("y", "bold reverse"), " yes  any other key: no")
    if view.mode == "filter":
        return _keys([("Enter", "keep"), ("Esc", "no filter"), ("Ctrl-U", "empty")], columns)
    if view.mode in ("help", "alerts"):
        return Text("Any key goes back.", style="dim")
    if view.message:
        return Text(view.message, style="bold red" if view.is_trouble else "bold green", no_wrap=True)
    return _keys(hints(view), columns)


def _keys(hints: list[tuple[str, str]], columns: int) -> Text:
    """As many as fit whole."""
    line = Text(no_wrap=True)
    for key, what in hints:
        part = Text.assemble((key, "bold reverse"), f" {what}  ")
        if line.cell_len + part.cell_len - 2 > columns:
            break
        line.append_text(part)
    line.rstrip()
    return line
