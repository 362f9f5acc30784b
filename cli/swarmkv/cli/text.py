"""Text of users and models for a line of a terminal."""

from __future__ import annotations

from swarmkv.protocol.text import clean, clean_line

__all__ = ["clean", "clean_line", "tail"]


def tail(text: str, num_chars: int) -> str:
    """The last characters of a line, with a sign in front when something was cut."""
    return text if len(text) <= num_chars else "…" + text[len(text) - num_chars + 1 :]
