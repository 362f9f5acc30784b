"""The terminal while it is ours: alternate screen, keys as they are pressed, only changed lines written.

Then it is as it was before, however this process ends (but for SIGKILL).

Keys come byte by byte and unechoed, but signals stay signals: Ctrl-C and Ctrl-Z end and suspend as everywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.text import Text

# Alternate screen, no cursor, no wrapping: a character that is wider than thought stays on its line.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[2J\x1b[H\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show the frame at once
_LFLAG, _IFLAG, _CC = 3, 0, 6  # of what tcgetattr returns


def is_terminal(*streams: TextIO) -> bool:
    """Can all of them be used as a terminal that places its cursor?"""
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") not in ("dumb", "")


class Terminal:
    """A context manager; inside, `show` draws frames. May be left and entered again (Ctrl-Z)."""

    def __init__(self, stdin: TextIO = sys.stdin, stdout: TextIO | None = None) -> None:
        self._out = stdout or sys.stdout
        self.keys_fd = stdin.fileno()
        self._before: list[Any] | None = None
        self._shown: list[str] = []
        self._console = Console(
            file=self._out, force_terminal=True, markup=False, highlight=False, emoji=False, legacy_windows=False
        )

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal; harmless when it is ours already, but for one that another program has changed."""
        if self._before is None:
            self._before = termios.tcgetattr(self.keys_fd)
        mode = [*self._before[:_CC], list(self._before[_CC])]
        mode[_LFLAG] &= ~(termios.ICANON | termios.ECHO)
        mode[_IFLAG] &= ~termios.IXON  # else Ctrl-S stops the screen, and this process with it
        mode[_CC][termios.VMIN], mode[_CC][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys_fd, termios.TCSADRAIN, mode)
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Give the terminal back as it was; a second time does nothing. Never raises: it may have gone."""
        before, self._before = self._before, None
        if before is None:
            return
        with contextlib.suppress(Exception):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error, OSError):
            termios.tcflush(self.keys_fd, termios.TCIFLUSH)  # keys meant for us are no commands for the shell
            termios.tcsetattr(self.keys_fd, termios.TCSANOW, before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of now."""
        try:
            columns, lines = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return columns or 80, lines or 24

    def forget(self) -> None:
        """Draw every line at the next `show`: what stands there may be another's, or another size's."""
        self._shown = []

    def show(self, lines: Sequence[Text]) -> None:
        """Put a frame on the screen; lines that have not changed are not written."""
        drawn = [self._ansi(line) for line in lines]
        parts = [] if len(drawn) == len(self._shown) else ["\x1b[0m\x1b[2J"]
        old = self._shown if not parts else [""] * len(drawn)
        # A line is erased before it is written: its characters may be wider or narrower than we think.
        parts += [
            f"\x1b[{row};1H\x1b[K{new}"
            for row, (new, shown) in enumerate(zip(drawn, old, strict=True), 1)
            if new != shown
        ]
        if parts:
            self._write(_BEGIN_FRAME + "".join(parts) + _END_FRAME)
        self._shown = drawn

    def _ansi(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", no_wrap=True, overflow="ignore", crop=False)
        return capture.get()

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
