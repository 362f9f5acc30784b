"""What `top` draws: exactly as large as the terminal, with what matters most on it."""

from __future__ import annotations

import dataclasses

import pytest
from rich.cells import cell_len

from swarmkv.monitor.top import figures, plain
from swarmkv.monitor.top.keys import press
from swarmkv.monitor.top.reading import Reading
from swarmkv.monitor.top.view import View
from swarmkv.protocol.messages import ErrorInfo
from tests.top_support import frame, made_up
from tests.unit.test_cli_render import branch, report

SIZES = [(80, 24), (40, 15), (200, 50), (25, 7), (20, 6), (10, 3), (1, 1)]
HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\nb\u202ec\t\x9b31m"


@pytest.fixture
def view() -> View:
    view = View()
    view.take(made_up(1_000))
    return view


def is_safe(line: str) -> bool:
    return not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char == "\u202e" for char in line)


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("keys", ["1", "2", "3", "4", "?", "a", "/x", "c"])
def test_a_frame_has_exactly_the_size_of_the_terminal(view: View, columns: int, lines: int, keys: str) -> None:
    for key in keys:
        press(view, key)
    drawn = frame(view, columns, lines, outage="Redis cannot be reached.", outage_s=3.0)
    assert len(drawn) == lines
    assert [cell_len(line) for line in drawn] == [columns] * lines


@pytest.mark.parametrize(("columns", "lines", "least_rows"), [(80, 24, 13), (40, 15, 5), (200, 50, 38)])
def test_the_table_keeps_its_share_of_the_screen(view: View, columns: int, lines: int, least_rows: int) -> None:
    drawn = "\n".join(frame(view, columns, lines))
    ages = [figures.age(2.5 * (number + 1)) for number in range(least_rows)]
    assert all(f"{age}" in drawn for age in ages)
    for part in ("swarmkv top", "312 tok/s", "24,976 tok", "age▲", "? help"):
        assert part in drawn


def test_at_eighty_by_twenty_four_everything_that_matters_is_there(view: View) -> None:
    drawn = "\n".join(frame(view, 80, 24))
    for part in (
        *("branch default      112      22    4.2 s", "22/32 slots", "54 s  88 %", "1.2 GiB of 4.0 GiB"),
        *("1 prefill  2 branch  3 dead", "! No prefill worker serves model 'llama'", "3 Runs 1,000"),
        *("licence agreement 1 ", "333/1,000", "with errors", "契約書レビュー 3 "),
    ):
        assert part in drawn


def test_names_cannot_act_on_the_terminal(view: View) -> None:
    reading = made_up(8)
    runs = tuple(dataclasses.replace(run, name=HOSTILE, model=HOSTILE, state=HOSTILE) for run in reading.runs)
    workers = tuple(dataclasses.replace(row, id=HOSTILE, host=HOSTILE, device=HOSTILE) for row in reading.workers)
    alerts = tuple(dataclasses.replace(row, message=HOSTILE, remedy=HOSTILE) for row in reading.alerts)
    queues = tuple(dataclasses.replace(row, model=HOSTILE) for row in reading.queues)
    view.take(dataclasses.replace(reading, runs=runs, workers=workers, alerts=alerts, queues=queues))
    for key in "1234acx":
        press(view, key)
        for width in (80, 200):
            drawn = frame(view, width, 24, outage=HOSTILE)
            assert all(is_safe(line) and cell_len(line) == width for line in drawn)
    assert is_safe(plain.text(view.reading or reading, 120).replace("\n", ""))


def test_the_branches_of_a_run_are_shown_with_the_last_words_of_the_selected_one(view: View) -> None:
    press(view, "enter")
    assert view.watched_id == "000000000000"
    error = ErrorInfo(code="x", message="Too long.", hint="Shorten it.")
    branches = (
        branch("liability", state="running", text="word " * 200 + "the \x1b[2Jend", worker="branch-1"),
        branch("broken", state="failed", error=error),
    )
    view.take_watched(report(*branches, run_id="000000000000", state="running"))
    drawn = frame(view, 80, 24)
    assert any(line.startswith("Run 000000000000 running spec  1/2 ended  3,500 tokens") for line in drawn)
    assert any("liability" in line and "running" in line for line in drawn)
    assert any(line.startswith("── liability running ──") for line in drawn)
    assert any("the ␛[2Jend" in line for line in drawn)
    press(view, "down")
    assert any(line.startswith("Too long. Shorten it.") for line in frame(view, 80, 24))
    press(view, "escape")
    assert any(line.startswith("run ") for line in frame(view, 80, 24))


def test_an_outage_is_said_over_what_was_known_before(view: View) -> None:
    drawn = frame(view, 80, 24, outage="Redis cannot be reached (refused).", outage_s=12.0)
    assert drawn[1].startswith("Out of touch for 12 s: Redis cannot be reached (refused).")
    assert any("licence agreement 1 " in line for line in drawn)


def test_before_the_first_reading_it_says_that_it_connects() -> None:
    drawn = frame(View(), 80, 24)
    assert drawn[0].rstrip().endswith("connecting")
    assert len(drawn) == 24


def test_an_empty_installation_says_how_to_begin() -> None:
    view = View()
    view.take(Reading(taken_ms=1))
    for key, words in (
        ("1", "swarmkv up"),
        ("2", "swarmkv worker all"),
        ("3", "swarmkv enqueue"),
        ("4", "No worker"),
    ):
        press(view, key)
        assert any(words in line for line in frame(view, 100, 24))


def test_help_fits_a_terminal_of_eighty_by_twenty_four_and_names_every_key(view: View) -> None:
    press(view, "?")
    drawn = "\n".join(frame(view, 80, 24))
    for part in (
        "Tab",
        "PgDn",
        "Enter",
        "s, S",
        "/",
        "cancel",
        "again",
        "pause",
        "drain",
        "Space",
        "quit",
        "resident",
    ):
        assert part in drawn


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_one_frame_as_text_has_all_panels_and_says_what_it_leaves_out(columns: int) -> None:
    text = plain.text(made_up(1_000), columns)
    assert "\x1b" not in text
    assert all(cell_len(line) <= columns for line in text.splitlines())
    for part in ("Queues\n", "Workers\n", "Runs\n", "Snapshots\n", "and 980 more\n"):
        assert part in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.0 s"), (4.24, "4.2 s"), (59.9, "60 s"), (60.0, "1.0 min"), (7_200.0, "2.0 h"), (1e6, "12 d")],
)
def test_ages_take_few_characters(value: float, shown: str) -> None:
    assert figures.age(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "░░░░"), (0.01, "█░░░"), (0.99, "███░"), (1.0, "████"), (7.0, "████")]
)
def test_a_bar_shows_something_as_something_and_only_all_as_full(value: float, shown: str) -> None:
    assert figures.bar(value, 4) == shown
