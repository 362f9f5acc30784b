"""Real worker processes for tests, and the settings they are given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from swarmkv.producer import Producer
from swarmkv.protocol.settings import PREFIX, Settings
from tests.waiting import eventually

_SERVE = """
import logging, sys
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.settings import load_settings
from swarmkv.workers.main import run_worker
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
try:
    sys.exit(run_worker(sys.argv[1], sys.argv[2], sys.argv[3], load_settings()))
except SwarmkvError as exc:
    sys.exit(f"error: {exc}")
"""


@dataclass
class WorkerProcess:
    """One worker process; its log is a file."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(signum)

    def end(self, timeout_s: float = 20) -> int:
        """SIGTERM and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(timeout=20)


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment that makes another process load the same settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if value is not None and value != Settings.model_fields[name].get_default(call_default_factory=True):
            env[PREFIX + name.upper()] = str(value)
    return env


@dataclass
class Fleet:
    """Starts worker processes of one installation and ends them all."""

    settings: Settings
    directory: Path
    processes: list[WorkerProcess] = field(default_factory=list)

    def start(self, role: str, model: Path | str, alias: str = "default", **changes: object) -> WorkerProcess:
        """Start one worker; `changes` are settings that differ for it."""
        settings = self.settings.model_copy(update=changes)
        log_path = self.directory / f"{role}-{len(self.processes)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, role, alias, str(model)],
                env=environment_of(settings),
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        worker = WorkerProcess(process, log_path)
        self.processes.append(worker)
        return worker

    async def ready(self, producer: Producer, count: int, timeout_s: float = 60) -> None:
        """Wait until `count` workers beat; fails at once with the log of one that ended."""

        async def all_beat() -> bool:
            for worker in self.processes:
                assert worker.process.poll() in (None, -signal.SIGKILL), worker.log
            return len(await producer.workers()) >= count

        await eventually(all_beat, timeout_s=timeout_s)


@contextmanager
def fleet_of(settings: Settings, directory: Path) -> Iterator[Fleet]:
    """A fleet whose processes are gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(settings, directory)
    try:
        yield fleet
    finally:
        for worker in fleet.processes:
            if worker.process.poll() is None:
                worker.process.terminate()
        for worker in fleet.processes:
            try:
                worker.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                worker.kill()
