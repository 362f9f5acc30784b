"""Text of users and models, made safe for a terminal.

An answer may hold anything: escape sequences that move the cursor or set the window's title, overrides that
turn the direction of writing, half a surrogate pair. None of it may act; it is shown as a visible sign
instead.
"""

from __future__ import annotations

import re

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTROL_PICTURES = 0x2400  # U+2400 is the picture of NUL, U+241B that of ESC
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks and overrides
    "\u2028\u2029\ufeff\ud800-\udfff"  # separators that break lines, BOM, lone surrogates
    "\U000e0000-\U000e007f"  # invisible tags
    "]"
)


def clean(text: str) -> str:
    """`text` with every character that could act on a terminal replaced; newlines and tabs stay."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """`clean`, on one line: runs of white space become one space."""
    return " ".join(clean(text).split())


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(_CONTROL_PICTURES + code) if code < 0x20 else _REPLACEMENT
