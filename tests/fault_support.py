"""What the fault tests share: workers with faults, brokers that can be killed, what a follower hears of a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from swarmkv.producer import Producer, RunHandle
from swarmkv.protocol.events import BranchDone, BranchRestarted, BranchText, Event
from swarmkv.protocol.messages import RunReport
from swarmkv.protocol.settings import Settings
from tests.conftest import Server, server_binary, start_server
from tests.processes import Fleet, WorkerProcess, environment_of
from tests.waiting import eventually

FAULTY_WORKER = Path(__file__).with_name("faulty_worker.py")


@dataclass
class FaultyFleet(Fleet):
    """Workers that may have faults; see tests/faulty_worker.py."""

    def start_faulty(
        self, role: str, model: Path | str, faults: Mapping[str, object], alias: str = "default", **changes: object
    ) -> WorkerProcess:
        """Start one worker with faults; `changes` are settings that differ for it."""
        settings = self.settings.model_copy(update=changes)
        log_path = self.directory / f"faulty-{role}-{len(self.processes)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(FAULTY_WORKER), role, alias, str(model)],
                env=environment_of(settings) | {"WORKER_FAULTS": json.dumps(faults)},
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        worker = WorkerProcess(process, log_path)
        self.processes.append(worker)
        return worker

    async def beats(self, producer: Producer, *workers: WorkerProcess) -> None:
        """Wait until these workers beat; fails at once with the log of one that ended."""
        for worker in workers:

            async def is_listed(worker: WorkerProcess = worker) -> bool:
                assert worker.process.poll() is None, worker.log
                return worker.pid in [live.info.pid for live in await producer.workers()]

            await eventually(is_listed, timeout_s=60)


@contextmanager
def faulty_fleet(settings: Settings, directory: Path) -> Iterator[FaultyFleet]:
    """A fleet whose processes are gone afterwards, also stopped ones."""
    directory.mkdir(parents=True, exist_ok=True)
    fleet = FaultyFleet(settings, directory)
    try:
        yield fleet
    finally:
        for worker in fleet.processes:
            if worker.process.poll() is None:
                worker.send(signal.SIGKILL)
            worker.process.wait(timeout=20)


@dataclass
class PrivateBroker:
    """A broker of one test, to be killed and started again over the same files."""

    directory: Path
    options: tuple[str, ...]
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        """Start it, and wait until it answers."""
        binary = server_binary("valkey")
        assert binary is not None
        self.server = start_server(binary, self.directory, "valkey", *self.options)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it is gone."""
        if self.server.process.poll() is None:
            self.server.process.send_signal(signum)
        self.server.process.wait(timeout=20)


@contextmanager
def private_broker(directory: Path, *options: str) -> Iterator[PrivateBroker]:
    """A broker that writes every change to disk before it answers."""
    directory.mkdir(parents=True, exist_ok=True)
    broker = PrivateBroker(directory, ("--appendonly", "yes", "--appendfsync", "always", *options))
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


@dataclass
class Heard:
    """What a follower of a run has been told."""

    events: list[Event] = field(default_factory=list)

    @property
    def ends(self) -> Counter[str]:
        """How often the end of each branch was told."""
        return Counter(event.branch for event in self.events if isinstance(event, BranchDone))

    @property
    def reasons(self) -> set[str]:
        return {event.reason for event in self.events if isinstance(event, BranchRestarted)}

    def text(self, branch: str) -> str:
        """The text of the last attempt, joined by the rules for followers."""
        attempt, text = 0, ""
        for event in self.events:
            if isinstance(event, BranchText) and event.branch == branch and event.attempt >= attempt:
                if event.attempt > attempt:
                    attempt, text = event.attempt, ""
                assert event.offset <= len(text), "a piece is missing"
                text = text[: event.offset] + event.text
        return text


async def heard_of(run: RunHandle) -> Heard:
    """Every event of a run, from its beginning to its end."""
    return Heard([event async for event in run.events()])


async def until(run: RunHandle, kind: type[Event], count: int = 1) -> None:
    """Return when a run has told `count` branches' (or the prefill's) events of a kind."""
    seen: set[str] = set()
    async for event in run.events():
        if isinstance(event, kind):
            seen.add(getattr(event, "branch", ""))
            if len(seen) >= count:
                return
    raise AssertionError(f"the run ended before {count} x {kind.__name__}")


def store_files(settings: Settings) -> tuple[list[str], list[str]]:
    """The names of snapshots, and of temporary files."""
    names = sorted(path.name for path in settings.store_dir.iterdir())
    return [name for name in names if name.endswith(".kv")], [name for name in names if name.endswith(".tmp")]


def check_each_ended_once(heard: Heard, report: RunReport) -> None:
    """One end per branch, and what a follower has read is the result."""
    assert heard.ends == {branch.name: 1 for branch in report.branches}
    for branch in report.branches:
        assert heard.text(branch.name) == branch.text
        assert branch.tokens.generated > 0
