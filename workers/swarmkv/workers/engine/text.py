"""Pieces of bytes to text that can be shown at once.

A token may end inside a character, and a stop string may span tokens. So a few characters are held back:

    pushed   T h e   a n s w e r .  \n  # #            stop string: "\n##END"
             └──────── shown ─────┘ └ held ┘           shown once it can no longer be the stop string
"""

from __future__ import annotations

import codecs


class TextStream:
    """The text of one branch, as it grows. Always valid Unicode.

    Bytes become U+FFFD once no byte that follows can make them a character. The text ends before the stop
    string that is complete first (the longest of those); no part of it is ever given out. What `push` and
    `finish` return, joined, is `text`; it does not depend on how the bytes were cut.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown: list[str] = []
        self._held = ""
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything given out so far."""
        return "".join(self._shown)

    def push(self, piece: bytes) -> str:
        """Take the bytes of a token; returns the text that is safe to show now, "" once stopped."""
        if self.stopped:
            return ""
        return self._take(self._decoder.decode(piece))

    def finish(self) -> str:
        """No more bytes follow (end of generation, or length): returns what was held back."""
        if self.stopped:
            return ""
        shown = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return shown + self._show(held)

    def _take(self, text: str) -> str:
        text = self._held + text
        cut = self._stop_start(text)
        if cut is not None:
            self.stopped, self._held = True, ""
            return self._show(text[:cut])
        safe = len(text) - self._possible_stop_length(text)
        self._held = text[safe:]
        return self._show(text[:safe])

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text

    def _stop_start(self, text: str) -> int | None:
        """Where the stop string begins that is complete first, the longest of those that end together."""
        starts = ((stop, text.find(stop)) for stop in self._stop)
        found = [(start + len(stop), start) for stop, start in starts if start >= 0]
        return min(found)[1] if found else None

    def _possible_stop_length(self, text: str) -> int:
        """Length of the longest end of `text` that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
