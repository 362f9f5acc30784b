"""Where the command line writes: results on stdout, everything about them on stderr.

Markup and emoji codes are off on every console, so that `[red]` in a prompt is printed as it stands.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from swarmkv.cli.text import clean
from swarmkv.protocol.errors import SwarmkvError

_WIDE = 1_000  # columns of a pipe or a file: nothing is cut or wrapped for it


def stdout() -> Console:
    """A console on the stdout of now."""
    return _console(stderr=False)


def stderr() -> Console:
    """A console on the stderr of now."""
    return _console(stderr=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, in ASCII: what a model says can neither break it nor the terminal."""
    _write(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    """One JSON document on one line of stdout."""
    _write(json.dumps(value))


def note(message: str, hint: str = "", *, style: str = "") -> None:
    """A line about what goes on, on stderr; the hint, if any, on a second one."""
    console = stderr()
    console.print(Text(clean(message), style=style), soft_wrap=True)
    if hint:
        console.print(Text("  " + clean(hint), style="dim"), soft_wrap=True)


def error_document(error: SwarmkvError) -> dict[str, Any]:
    """An error as the JSON document that takes the place of the result."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def print_error(error: SwarmkvError) -> None:
    """An error in one or two lines on stderr."""
    console = stderr()
    line = Text("error: ", style="bold red") + Text(clean(error.message))
    console.print(line, soft_wrap=True)
    if error.hint:
        console.print(Text("  " + clean(error.hint)), soft_wrap=True)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
