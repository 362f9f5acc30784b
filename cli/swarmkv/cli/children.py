"""Python programs that compute something for this command, and never outlive it.

A child runs in a session of its own, so that Ctrl-C reaches this process alone; it is tethered, and it is killed
and reaped when its `with` block is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from swarmkv.cli.supervise import describe_status
from swarmkv.protocol.errors import SwarmkvError

_TETHER = Path(__file__).with_name("tether.py")


class ChildFailed(SwarmkvError):
    """A child ended without what it was started for; the message is the last that it said."""

    code = "child_failed"


class Child:
    """`python -m MODULE ARGUMENT...`, with lines to and from it; `env`: its whole environment, else this one."""

    def __init__(self, module: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        tether = (sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), str(int(signal.SIGKILL)))
        # -P: the directory that the user stands in is no place to import modules from.
        self._process = subprocess.Popen(
            [*tether, sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=None if env is None else dict(env),
            start_new_session=True,
            text=True,
        )

    def read_line(self) -> str:
        """The next line. Raises ChildFailed when there is none any more."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return line.rstrip("\n")

    def write_line(self, line: str) -> None:
        """Raises ChildFailed when the child has gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise self._failure() from exc

    def wait(self) -> None:
        """Until it ends well. Raises ChildFailed."""
        if self._process.wait() != 0:
            raise self._failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # nobody misses what a dead child has not read
                    stream.close()
        self._stderr.close()

    def _failure(self) -> ChildFailed:
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return ChildFailed(said or f"It ended without a word ({describe_status(status)}).")
