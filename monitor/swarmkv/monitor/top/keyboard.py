"""From the bytes that a terminal sends to the names of keys."""

from __future__ import annotations

import codecs
import re

_NAMED = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",  # Ctrl-L
    "\x15": "clear",  # Ctrl-U
    "\x03": "q",  # Ctrl-C, should the terminal not make a signal of it
}
_FINAL = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab"}
_TILDE = {"1": "home", "7": "home", "4": "end", "8": "end", "5": "pageup", "6": "pagedown"}
_SEQUENCE = re.compile(r"\x1b(?:\[([0-9;:<=>?]*)[ -/]*([@-~])|O([A-Z]))")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*|O)?\Z")
_MAX_SEQUENCE_CHARS = 32  # of what may still become a sequence; more is noise


class Keyboard:
    """Takes bytes as they come, also when they are cut inside a sequence or a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    @property
    def is_waiting(self) -> bool:
        """Does an escape wait for what follows? If nothing comes, `rest` is the key that was meant."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """The keys in what came: their names, or the character itself."""
        text = self._pending + self._decoder.decode(data)
        self._pending, keys = "", []
        while text:
            if text[0] != "\x1b":
                keys += _plain(text[0])
                text = text[1:]
            elif match := _SEQUENCE.match(text):
                keys += _sequence(match)
                text = text[match.end() :]
            elif _UNFINISHED.match(text) and len(text) <= _MAX_SEQUENCE_CHARS:
                self._pending, text = text, ""
            else:
                keys.append("escape")
                text = text[1:]
        return keys

    def rest(self) -> list[str]:
        """The keys in what was held back, when nothing more came."""
        pending, self._pending = self._pending, ""
        return ["escape", *(key for char in pending[1:] for key in _plain(char))] if pending else []


def _plain(char: str) -> list[str]:
    if char in _NAMED:
        return [_NAMED[char]]
    return [char] if char.isprintable() else []


def _sequence(match: re.Match[str]) -> list[str]:
    parameters, final, ss3 = match.groups()
    key = _TILDE.get(parameters.partition(";")[0]) if final == "~" else _FINAL.get(ss3 or final)
    return [key] if key else []
