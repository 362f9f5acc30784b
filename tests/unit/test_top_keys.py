"""What the keys of `top` change, and what they ask for."""

from __future__ import annotations

import dataclasses
import random

import pytest

from swarmkv.monitor.top.actions import Cancel, Order, Quit, Redraw, Retry, Watch
from swarmkv.monitor.top.keyboard import Keyboard
from swarmkv.monitor.top.keys import press
from swarmkv.monitor.top.view import View
from tests.top_support import frame, made_up


@pytest.fixture
def view() -> View:
    view = View()
    view.take(made_up(1_000))
    return view


def selected_id(view: View) -> str:
    row = view.listing().selected
    assert row is not None
    return str(row.id)


def ids(view: View) -> list[str]:
    return [row.id for row in view.listing().rows]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qs/\xc3\xa9", ["q", "s", "/", "é"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["pageup", "pagedown", "home", "end", "home", "end"]),
        (b"\t\x1b[Z\r\n\x7f", ["tab", "backtab", "enter", "enter", "backspace"]),
        (b"\x1b[1;5A\x1b[200~\x1b[3~x", ["up", "x"]),  # unknown sequences are swallowed whole
        (b"\x1bq", ["escape", "q"]),
        (b"\xff\x00\x01", ["\N{REPLACEMENT CHARACTER}"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert Keyboard().feed(data) == keys


@pytest.mark.parametrize("data", [b"\x1b[5~", b"\x1b[1;5A", b"\x1bOA", "é漢".encode()])
def test_what_arrives_in_pieces_is_the_same(data: bytes) -> None:
    whole, keyboard = Keyboard().feed(data), Keyboard()
    assert [key for byte in data for key in keyboard.feed(bytes([byte]))] == whole
    assert not keyboard.is_waiting


def test_an_escape_that_nothing_follows_is_the_key() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.is_waiting
    assert keyboard.rest() == ["escape"]
    assert keyboard.rest() == []


def test_noise_is_never_held_back_for_long() -> None:
    keyboard = Keyboard()
    keyboard.feed(b"\x1b[" + b"1;" * 10_000)
    assert not keyboard.is_waiting


def test_sorting_goes_through_the_columns_and_back_to_the_first(view: View) -> None:
    place = view.listing().place
    assert (place.sorted_by, place.descending) == ("age", False)
    seen = []
    for _ in range(7):
        press(view, "s")
        seen.append(place.sorted_by)
    assert seen == ["model", "run", "name", "state", "ended", "open", "age"]


def test_sorting_by_a_number_begins_with_the_largest_and_reverses(view: View) -> None:
    while view.listing().place.sorted_by != "open":
        press(view, "s")
    opens = [row.open for row in view.listing().rows]
    assert opens == sorted(opens, reverse=True)
    press(view, "S")
    assert [row.open for row in view.listing().rows] == sorted(opens)


def test_what_is_not_known_sorts_last_in_both_directions(view: View) -> None:
    press(view, "2")
    while view.listing().place.sorted_by != "tok/s":
        press(view, "s")
    for _ in range(2):
        assert view.listing().rows[-1].tokens_per_s is None
        press(view, "S")


def test_the_filter_is_typed_kept_and_taken_off(view: View) -> None:
    for key in "/LICENCE agreement 7q":
        press(view, key)
    assert view.listing().rows == []
    press(view, "backspace")
    assert len(ids(view)) > 1
    assert all("licence agreement 7" in row.name for row in view.listing().rows)
    assert press(view, "enter") is None
    assert view.mode == "browse"
    press(view, "escape")
    assert len(ids(view)) == 1_000


def test_the_filter_finds_states_as_they_are_shown(view: View) -> None:
    for key in "/with errors":
        press(view, key)
    assert {row.state for row in view.listing().rows} == {"completed_with_errors"}


def test_the_selection_stays_on_its_row_when_the_order_changes(view: View) -> None:
    for _ in range(5):
        press(view, "down")
    chosen = selected_id(view)
    reading = made_up(1_000)
    view.take(dataclasses.replace(reading, runs=tuple(random.Random(3).sample(reading.runs, 1_000))))
    assert selected_id(view) == chosen
    press(view, "S")
    assert selected_id(view) == chosen


def test_a_row_that_has_gone_leaves_the_selection_where_it_was(view: View) -> None:
    for _ in range(5):
        press(view, "down")
    reading = made_up(1_000)
    view.take(dataclasses.replace(reading, runs=reading.runs[:5] + reading.runs[6:]))
    assert selected_id(view) == reading.runs[6].id
    view.take(dataclasses.replace(reading, runs=()))
    assert view.listing().selected is None
    for key in ("down", "enter", "c", "r", "p", "d"):
        assert press(view, key) is None


def test_the_page_follows_the_selection(view: View) -> None:
    frame(view, 80, 24)
    press(view, "end")
    assert "0000000003e7" in "\n".join(frame(view, 80, 24))
    press(view, "pageup")
    frame(view, 80, 24)
    assert view.listing().index == 999 - view.page_rows
    press(view, "home")
    assert frame(view, 80, 24)[10].startswith("000000000000")


def test_cancelling_asks_first_and_names_the_run(view: View) -> None:
    assert press(view, "c") is None
    assert view.question == "Cancel run 000000000000 (patent-7,302,114.pdf 0)?"
    assert press(view, "n") is None
    assert (view.mode, view.message) == ("browse", "Nothing was done.")
    press(view, "c")
    assert press(view, "y") == Cancel("000000000000")
    assert press(view, "y") is None


def test_the_run_that_was_asked_about_is_cancelled_whatever_is_selected_now(view: View) -> None:
    press(view, "c")
    reading = made_up(1_000)
    view.take(dataclasses.replace(reading, runs=reading.runs[1:]))
    assert press(view, "y") == Cancel("000000000000")


def test_a_run_that_has_ended_is_not_cancelled(view: View) -> None:
    for _ in range(3):
        press(view, "down")
    assert press(view, "c") is None
    assert view.mode == "browse"
    assert view.message == "Run 000000000003 has already ended: done."


def test_enter_looks_into_a_run_and_keys_act_on_it(view: View) -> None:
    assert press(view, "enter") == Watch()
    assert press(view, "c") is None  # nothing is known of it yet
    assert view.mode == "browse"
    assert press(view, "escape") is None
    assert view.watched_id is None


def test_retry_names_the_selected_run(view: View) -> None:
    press(view, "down")
    assert press(view, "r") == Retry("000000000001")


def test_workers_are_paused_resumed_and_drained(view: View) -> None:
    press(view, "2")
    assert press(view, "p") == Order("pause", "branch-1")
    press(view, "down")
    assert press(view, "p") == Order("resume", "branch-2")
    assert press(view, "d") is None
    assert "Drain worker branch-2?" in view.question
    assert press(view, "y") == Order("drain", "branch-2")


def test_snapshots_are_pinned_unpinned_and_dropped(view: View) -> None:
    press(view, "4")
    key = selected_id(view)
    assert press(view, "p") == Order("pin", key)
    press(view, "down")
    assert press(view, "p") == Order("unpin", selected_id(view))
    press(view, "d")
    assert press(view, "y") == Order("drop", selected_id(view))


def test_a_frozen_screen_shows_the_same_until_it_goes_on(view: View) -> None:
    before = frame(view, 80, 24)
    press(view, " ")
    view.take(dataclasses.replace(made_up(3), taken_ms=9))
    assert frame(view, 80, 24)[1:] == [*before[1:-1], frame(view, 80, 24)[-1]]
    assert "frozen" in frame(view, 80, 24)[0]
    press(view, " ")
    assert len(ids(view)) == 3


def test_every_key_does_something_sensible_everywhere(view: View) -> None:
    rng = random.Random(11)
    keys = [*"1234sSjk/?acrpd yn", "tab", "backtab", "enter", "escape", "backspace", "up", "end", "home", "redraw"]
    for _ in range(3_000):
        action = press(view, rng.choice(keys))
        assert not isinstance(action, Quit)
        if rng.random() < 0.02:
            view.take(made_up(rng.choice((0, 1, 7))))
            assert len(frame(view, rng.choice((20, 80)), rng.choice((6, 24)))) in (6, 24)


def test_quitting_and_redrawing_are_actions(view: View) -> None:
    assert press(view, "q") == Quit()
    assert press(view, "redraw") == Redraw()
