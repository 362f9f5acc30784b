"""What is said on the way: one line for each thing seen, with the seconds since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Told:
    """A running account on stdout."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def chapter(self, title: str) -> None:
        """What comes next."""
        self._line(f"\n== {title}")

    def saw(self, what: str) -> None:
        """Something that was seen."""
        self._line(f"{time.monotonic() - self._started:7.1f} s  {what}")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Say `what`, with how long it took, when it is done."""
        started = time.monotonic()
        yield
        self.saw(f"{what}: {time.monotonic() - started:.1f} s")

    def fail(self, why: str) -> None:
        self.saw(f"FAILED: {why}")

    def passed(self, what_remains: str) -> None:
        self.saw(f"passed; {what_remains}")

    def _line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
