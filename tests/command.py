"""The `swarmkv` command as a real process, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from swarmkv.protocol.settings import PREFIX

COMMAND = (sys.executable, "-P", "-m", "swarmkv.cli")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Home:
    """Environment and directories of one user, apart from those of whoever runs the tests."""

    directory: Path
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        return env | {
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory),
            "XDG_RUNTIME_DIR": str(self.directory),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "SWARMKV_STORE_DIR": str(self.directory / "store"),
            **dict(self.settings),
        }

    def with_settings(self, **settings: object) -> Home:
        """The same home with SWARMKV_* variables on top."""
        named = ((PREFIX + name.upper(), str(value)) for name, value in settings.items())
        return Home(self.directory, (*self.settings, *named))

    def run(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 60) -> Done:
        """Run a command to its end."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            env=self.env,
            cwd=self.directory,
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs beside the test; killed at the end of the block, with all its descendants."""
        with (self.directory / "stderr.txt").open("wb") as stderr:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self.env,
                cwd=self.directory,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            family = descendants(process.pid)
            process.kill()
            process.wait(timeout=20)
            assert process.stdout is not None
            process.stdout.close()
            # What it started should end by itself, and tidy up; a test that broke that must not leave it.
            _, alive = psutil.wait_procs(family, timeout=10)
            for member in alive:
                with suppress(psutil.NoSuchProcess):
                    member.kill()

    @property
    def stderr(self) -> str:
        """What the command of `started` has said on stderr so far."""
        return (self.directory / "stderr.txt").read_text()


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below `pid`; none when it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether every one has ended (psutil tells a new process that was given an old id from the old one)."""
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
