"""Programs that belong to this process: started, logged, restarted when they die, stopped in order.

    start ──▶ runs ──dies──▶ waits (backoff) ──▶ started again
                ├──ends with 0, and may──▶ it was told to: it is left alone
                └──ends with EXIT_USAGE──▶ ProgramFailed: another try would end the same way
    leaving the `async with` block: SIGTERM to every stage from the last to the first, SIGKILL after the
    grace time

Each program leads a session of its own, so that Ctrl-C in a terminal reaches only this process, which then
stops them in order; and each is tethered, so that it dies with this process even if that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from swarmkv.cli.interrupt import end
from swarmkv.cli.logs import json_line
from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.errors import SwarmkvError

logger = logging.getLogger(__name__)
T = TypeVar("T")

EXIT_USAGE = 2  # what a program ends with when its arguments, its settings or its model are wrong
_FIRST_BACKOFF_S = 0.4
_MAX_BACKOFF_S = 15.0
_STEADY_S = 30.0  # a program that ran this long starts over with the first backoff
_CHUNK_BYTES = 65_536
_MAX_LINE_BYTES = 8_192
_MAX_LOG_BYTES = 8 * 1024 * 1024
_LAST_LINES = 8
_REAP_S = 5.0
_MAX_START_DEATHS = 3
_ERROR = "error: "
_TETHER = Path(__file__).with_name("tether.py")


class ProgramFailed(SwarmkvError):
    """A program cannot be kept running; the hint is the last that it said."""

    code = "program_failed"


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. Programs of a higher `stage` are stopped before those of a lower one.

    One that `may_end` is not started again once it has ended with 0, as a worker does that was drained.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # beside the environment of this process
    pass_fds: tuple[int, ...] = ()
    grace_s: float = 12.0
    death_signal: int = signal.SIGKILL
    stage: int = 1
    may_end: bool = False


class LogFile:
    """Lines of all programs in one file, each behind its time and program; or JSON lines that name the program.

    Kept under twice _MAX_LOG_BYTES. What a full disk does not take is lost: the programs matter more.
    """

    def __init__(self, path: Path, *, as_json: bool = False) -> None:
        self.path = path
        self._shaped = json_line if as_json else _text_line
        self._file = self._open()

    def write(self, name: str, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(self._shaped(name, line) + b"\n")
            if self._file.tell() > _MAX_LOG_BYTES:
                self._rotate()

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self.path.replace(self.path.with_suffix(".1.log"))
        full, self._file = self._file, self._open()
        full.close()

    def _open(self) -> FileIO:
        file = FileIO(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
        os.fchmod(file.fileno(), 0o600)
        return file


def _text_line(name: str, line: bytes) -> bytes:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {name} | ".encode() + line


class Supervisor:
    """Keeps programs running inside an `async with` block, which ends with all of them gone.

    `notice` is told in a sentence what happens to a program that was not asked to end.
    """

    def __init__(self, log: Path, notice: Callable[[str], None], *, log_as_json: bool = False) -> None:
        self._log = LogFile(log, as_json=log_as_json)
        self._notice = notice
        self._kept: list[_Kept] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for stage in sorted({kept.program.stage for kept in self._kept}, reverse=True):
                await self._stop_stage(stage)
        finally:
            # Reached early when a second Ctrl-C cancels the gentle way.
            await self._kill_all()
            self._log.close()

    async def start(self, program: Program) -> None:
        """Start `program` and keep it running from now on."""
        kept = _Kept(program, self._log, self._notice)
        await kept.spawn()
        self._kept.append(kept)

    def pids(self) -> dict[str, int]:
        """Process id by program name, of those that run now."""
        return {kept.program.name: kept.pid for kept in self._kept if kept.pid is not None}

    async def watch(self) -> None:
        """Raise the ProgramFailed of the first that cannot be kept running; return when all have ended well."""
        running = {kept.keeper for kept in self._kept}
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for keeper in ended:
                keeper.result()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; raises ProgramFailed as soon as a program cannot be kept running."""
        failing = asyncio.create_task(self.watch(), name="watch programs")
        working = asyncio.create_task(work, name="work beside programs")
        try:
            await asyncio.wait({failing, working}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
            return await working
        finally:
            await end(failing)
            await end(working)

    def check_starting(self, name: str) -> None:
        """Raise ProgramFailed when a program that is not ready yet dies again and again."""
        for kept in self._kept:
            if kept.program.name == name and kept.num_restarts > _MAX_START_DEATHS:
                raise kept.failure(f"{name} died {kept.num_restarts} times at its start.")

    async def _kill_all(self) -> None:
        for kept in self._kept:
            kept.kill()
        ends = [asyncio.create_task(kept.gone(), name="reap") for kept in self._kept]
        if ends:
            await asyncio.wait(ends, timeout=_REAP_S)

    async def _stop_stage(self, stage: int) -> None:
        await asyncio.gather(*(kept.stop() for kept in self._kept if kept.program.stage == stage))


class _Kept:
    """One program, its process of now, and the task that restarts it."""

    def __init__(self, program: Program, log: LogFile, notice: Callable[[str], None]) -> None:
        self.program = program
        self.keeper: asyncio.Task[None]
        self.num_restarts = 0
        self._log = log
        self._notice = notice
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def spawn(self) -> None:
        await self._execute()
        self.keeper = asyncio.create_task(self._keep(), name=f"keep {self.program.name}")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace time; returns when the process and its log are done."""
        self.keeper.cancel()
        await asyncio.wait([self.keeper])  # from here on, nobody starts a new process
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.gone(), self.program.grace_s)
        except TimeoutError:
            self._notice(f"{self.program.name} did not stop in {self.program.grace_s:.0f} s: killed.")
            self.kill()
            await self.gone()

    def kill(self) -> None:
        """SIGKILL to the whole session, if it still runs."""
        self.keeper.cancel()
        self._signal(signal.SIGKILL)

    async def gone(self) -> None:
        """Return when the process has ended and its last line is in the log."""
        if self._process is not None and self._pump is not None:
            await self._process.wait()
            await asyncio.shield(self._pump)

    def failure(self, message: str) -> ProgramFailed:
        """Why the program cannot be kept, with its own words."""
        return ProgramFailed(message, hint=self._last_words())

    async def _execute(self) -> None:
        argv = (
            *(sys.executable, "-I", "-S", str(_TETHER)),
            *(str(os.getpid()), str(int(self.program.death_signal))),
            *self.program.argv,
        )
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self.program.env},
            pass_fds=self.program.pass_fds,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pump = asyncio.create_task(self._copy_log(self._process.stdout), name=f"log {self.program.name}")
        extra = {"action": "program_started", "program": self.program.name, "pid": self._process.pid}
        logger.info("%s started", self.program.name, extra=extra)

    async def _keep(self) -> None:
        backoff = Backoff(first_s=_FIRST_BACKOFF_S, longest_s=_MAX_BACKOFF_S)
        while True:
            started = time.monotonic()
            await self.gone()
            assert self._process is not None
            status = self._process.returncode or 0
            if status == EXIT_USAGE:
                raise self.failure(f"{self.program.name} cannot run.")
            if status == 0 and self.program.may_end:
                self._notice(f"{self.program.name} was told to end, and has ended; it is not started again.")
                return
            if time.monotonic() - started > _STEADY_S:
                backoff.reset()
            backoff_s = backoff.next_s()
            self._notice(f"{self.program.name} ended ({describe_status(status)}); restarting in {backoff_s:.1f} s.")
            await asyncio.sleep(backoff_s)
            self.num_restarts += 1
            await self._execute()

    async def _copy_log(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._write(line)
            if len(rest) > _MAX_LINE_BYTES:
                self._write(rest)
                rest = b""
        if rest:
            self._write(rest)

    def _write(self, line: bytes) -> None:
        self._last_lines.append(line.decode(errors="replace"))
        self._log.write(self.program.name, line)

    def _last_words(self) -> str:
        """Its last error message, else its last lines."""
        lines = [line.strip() for line in self._last_lines if line.strip()]
        starts = [index for index, line in enumerate(lines) if line.startswith(_ERROR)]
        return " ".join(lines[starts[-1] :] if starts else lines).removeprefix(_ERROR)

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def describe_status(status: int) -> str:
    """An exit status in words: `exit 1`, `SIGKILL`."""
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
