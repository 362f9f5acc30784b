"""What users and models say must not act on a terminal."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swarmkv.cli.text import clean, clean_line, tail


def test_an_escape_sequence_is_shown_instead_of_obeyed() -> None:
    assert clean("\x1b[2J\x1b]0;owned\x07red") == "␛[2J␛]0;owned␇red"


@pytest.mark.parametrize("hostile", ["\x9b31m", "\x7f", "\u202egnp.exe", "\u2066x", "\ud800", "\U000e0041"])
def test_hidden_controls_become_a_visible_sign(hostile: str) -> None:
    assert clean(hostile).startswith("\N{REPLACEMENT CHARACTER}")


def test_text_of_all_languages_stays_as_it_is() -> None:
    text = "Grüße, 你好, שלום, 👩\N{ZERO WIDTH JOINER}🚀\n\tcode"
    assert clean(text) == text


def test_a_windows_line_end_is_a_line_end_and_a_lone_return_is_shown() -> None:
    assert clean("one\r\ntwo\rover") == "one\ntwo␍over"


def test_a_line_has_no_line_breaks() -> None:
    assert clean_line(" a\n\n b\tc ") == "a b c"


def test_the_tail_says_that_it_is_one() -> None:
    assert tail("abcdef", 4) == "…def"
    assert tail("abcd", 4) == "abcd"


@given(st.text(alphabet=st.characters()))
def test_nothing_cleaned_controls_a_terminal_or_fails_to_encode(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    controls = {char for char in cleaned if unicodedata.category(char) in ("Cc", "Cs")}
    assert controls <= {"\n", "\t"}
    Console(file=io.StringIO(), markup=False).print(cleaned)
