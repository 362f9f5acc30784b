"""The standard streams, whatever this process was given for them: closed, a full disk, a pipe that nobody reads.

stdout fails    OutputClosed when its reader went away, else OutputFailed: nothing more can be delivered
stderr fails    OutputClosed when its reader went away; else what was to be said is lost, the work goes on
closed          as if it failed with EBADF, at its first use
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO, cast

from swarmkv.protocol.errors import SwarmkvError


class OutputClosed(Exception):
    """The reader of stdout or stderr went away (`| head`): there is nobody left to talk to."""


class OutputFailed(SwarmkvError):
    """stdout takes nothing."""

    code = "output"


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """All three streams are there in this block, and their failures are the exceptions above."""
    _open_missing()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a substitute, not a UnicodeEncodeError.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    out, err = _Guard(sys.stdout, _fail), _Guard(sys.stderr, _lose)
    try:
        with contextlib.redirect_stdout(cast("TextIO", out)), contextlib.redirect_stderr(cast("TextIO", err)):
            yield
    finally:
        for guard in (out, err):
            guard.let_go()


class _Guard:
    """A stream whose OSErrors go to `on_error`."""

    def __init__(self, stream: TextIO, on_error: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._on_error = on_error
        self._has_failed = False

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as exc:
            self._failed(exc)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as exc:
            self._failed(exc)

    def let_go(self) -> None:
        """Lead a stream that failed nowhere: Python flushes it once more at exit, and would complain."""
        if self._has_failed:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _failed(self, exc: OSError) -> None:
        self._has_failed = True
        if isinstance(exc, BrokenPipeError):
            raise OutputClosed from exc
        self._on_error(exc)


def _fail(exc: OSError) -> NoReturn:
    raise OutputFailed(f"The result cannot be written to stdout: {exc.strerror}.") from exc


def _lose(exc: OSError) -> None:
    """There is no place left to say it."""


def _open_missing() -> None:
    """Take the places of closed streams, which the next files and sockets would get otherwise.

    stdin and stdout are opened the wrong way round, so that using them fails.
    """
    if sys.stdin is None:
        sys.stdin = open(_nowhere(os.O_WRONLY), encoding="utf-8")  # noqa: SIM115 - open until this process ends
    if sys.stdout is None:
        sys.stdout = open(_nowhere(os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(_nowhere(os.O_WRONLY), "w", encoding="utf-8")  # noqa: SIM115


def _nowhere(flags: int) -> int:
    """The lowest free descriptor, which is the missing stream's; programs started here inherit it as such."""
    descriptor = os.open(os.devnull, flags)
    os.set_inheritable(descriptor, descriptor <= 2)
    return descriptor
