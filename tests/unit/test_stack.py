"""Long words are found, and tokenised with room."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.protocol.errors import InvalidInput
from swarmkv.workers.engine.stack import MAX_RUN, SAFE_RUN, call_with_room, longest_run

stretches = st.tuples(st.sampled_from("a7語 .。\n"), st.integers(1, 2 * SAFE_RUN))


@given(st.lists(stretches, max_size=6))
def test_the_longest_stretch_of_one_kind_is_found_and_short_ones_do_not_count(
    parts: list[tuple[str, int]],
) -> None:
    longest, length, kind = 0, 0, None
    for character, count in parts:
        length = length + count if kind == character.isalnum() else count
        kind = character.isalnum()
        longest = max(longest, length)
    text = "".join(character * count for character, count in parts)
    assert longest_run(text) == (longest if longest >= SAFE_RUN else 0)


def test_ordinary_text_in_lines_and_sentences_needs_no_room() -> None:
    assert longest_run("The licence is granted, as is.\n" * 10_000) == 0
    assert longest_run("契約は三年で終わる。" * 10_000) == 0


def test_a_call_with_room_returns_and_raises_what_the_call_does() -> None:
    usual = threading.stack_size()
    assert call_with_room(SAFE_RUN, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_with_room(SAFE_RUN, lambda: 1 // 0)
    assert threading.stack_size() == usual


def test_a_call_runs_on_its_own_thread_and_longer_runs_than_the_limit_are_refused() -> None:
    names: list[str] = []
    call_with_room(MAX_RUN, lambda: names.append(threading.current_thread().name))
    assert names == ["swarmkv-tokenize"]
    with pytest.raises(InvalidInput, match=str(MAX_RUN)):
        call_with_room(MAX_RUN + 1, lambda: None)
