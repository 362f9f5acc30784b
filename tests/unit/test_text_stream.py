"""Streamed text: whole characters, no part of a stop string, the same however the bytes are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmkv.workers.engine.text import TextStream

EMOJI = "👩‍🚀".encode()


def expected_text(data: bytes, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The plain way: decode it all, read on until some stop string is complete, cut in front of it."""
    text = data.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        complete = [string for string in stop if text[:end].endswith(string)]
        if complete:
            return text[: end - len(max(complete, key=len))], True
    return text, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


def stream(pieces: list[bytes], stop: tuple[str, ...]) -> tuple[list[str], TextStream]:
    stream = TextStream(stop)
    shown = [stream.push(piece) for piece in pieces]
    return [*shown, stream.finish()], stream


alphabets = st.sampled_from(["ab", "aé", "a日🚀", "a\ufffd\n"])
texts = alphabets.flatmap(lambda letters: st.text(letters, max_size=30)).map(str.encode)
stop_letters = st.sampled_from(["ab", "abé日🚀\ufffd"])
stops = st.lists(stop_letters.flatmap(lambda letters: st.text(letters, min_size=1, max_size=4)), max_size=4).map(
    tuple
)


@given(data=st.one_of(texts, st.binary(max_size=30)), places=st.lists(st.integers(0)), stop=stops)
@example(data=b"abc", places=[], stop=("abc", "b"))
@example(data=b"abc", places=[1, 2], stop=("abc", "b"))
@example(data=b"xaab", places=[3], stop=("aab",))
@example(data=b"xabcy", places=[], stop=("bc", "abc"))
@example(data=b"a\xf0\x9f\x9aa", places=[2, 3], stop=("\ufffda",))
def test_the_joined_stream_is_the_plain_decoded_text_up_to_the_first_complete_stop_string(
    data: bytes, places: list[int], stop: tuple[str, ...]
) -> None:
    shown, result = stream(cut(data, places), stop)
    text, stopped = expected_text(data, stop)
    assert "".join(shown) == result.text == text
    assert result.stopped is stopped


@given(data=texts, places=st.lists(st.integers(0)), stop=stops)
def test_nothing_shown_early_is_a_beginning_of_the_stop_string_that_follows(
    data: bytes, places: list[int], stop: tuple[str, ...]
) -> None:
    final, _ = expected_text(data, stop)
    running = TextStream(stop)
    shown = ""
    for piece in cut(data, places):
        shown += running.push(piece)
        assert final.startswith(shown)


@given(data=st.binary(max_size=40), places=st.lists(st.integers(0)))
def test_whatever_bytes_a_model_makes_every_shown_text_survives_json(data: bytes, places: list[int]) -> None:
    shown, _ = stream(cut(data, places), ("\ufffd\ufffd",))
    for text in shown:
        assert json.loads(json.dumps(text, ensure_ascii=False).encode()) == text


def test_an_emoji_cut_into_single_bytes_is_shown_one_whole_character_at_a_time() -> None:
    shown, _ = stream([bytes([byte]) for byte in EMOJI], ())
    assert [text for text in shown if text] == ["👩", "\u200d", "🚀"]


def test_an_emoji_that_the_length_limit_cut_ends_as_one_replacement_character() -> None:
    shown, result = stream([b"hi ", EMOJI[:3]], ())
    assert shown == ["hi ", "", "\ufffd"]
    assert result.text == "hi \ufffd"


def test_an_invalid_byte_is_replaced_as_soon_as_it_cannot_become_a_character() -> None:
    running = TextStream(())
    assert running.push(b"\xf0\x9f") == ""
    assert running.push(b"a") == "\ufffda"


@pytest.mark.parametrize("pieces", [[b"end\n##", b"END", b"more"], [b"end", b"\n##END more"]])
def test_a_stop_string_across_tokens_is_never_shown_and_ends_the_text(pieces: list[bytes]) -> None:
    shown, result = stream(pieces, ("\n##END",))
    assert shown[0] == "end"
    assert not any(shown[1:])
    assert (result.text, result.stopped) == ("end", True)


def test_a_beginning_of_a_stop_string_is_released_when_it_goes_on_differently() -> None:
    running = TextStream(("\n##END",))
    assert running.push(b"end\n##") == "end"
    assert running.push(b"E") == ""
    assert running.push(b"asy") == "\n##Easy"
    assert not running.stopped


def test_a_beginning_of_a_stop_string_at_the_end_is_released_by_finish() -> None:
    running = TextStream(("\n##END",))
    assert running.push(b"end\n##") == "end"
    assert running.finish() == "\n##"
    assert (running.text, running.stopped) == ("end\n##", False)


def test_after_the_stop_string_nothing_is_taken_any_more() -> None:
    running = TextStream(("!",))
    assert [running.push(b"a!b"), running.push(b"c"), running.finish()] == ["a", "", ""]


def test_text_that_cannot_begin_a_stop_string_is_shown_at_once() -> None:
    running = TextStream(("STOP",))
    assert running.push(b"go on ") == "go on "
