"""A whole installation for one measurement: a broker, workers as real processes, a producer."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.processes import Child
from swarmkv.producer import Producer, RunReport, Sampling
from swarmkv.protocol.place import BrokerPlace, check_socket_path, is_live
from swarmkv.protocol.settings import PREFIX, Settings

READY_S = 300.0
PATIENCE_S = 7_200.0
POLL_S = 0.02
BROKER = "broker"
NULL_MODEL = "null"  # is not opened by an engine that has no model


@dataclass(frozen=True, slots=True)
class Installation:
    """Running programs, by name, and a producer for them."""

    settings: Settings
    children: dict[str, Child]
    producer: Producer
    start_workers: Callable[[], None]

    async def run(self, document: str, prompts: Sequence[str], sampling: Sampling) -> RunReport:
        """Submit and wait. Raises BenchFailed when a branch did not end well."""
        handle = await self.producer.submit(document, prompts, sampling=sampling)
        return self.checked(await handle.results(PATIENCE_S))

    async def restart_workers(self) -> None:
        """End all workers, and start new ones; the broker and the store stay."""
        for name in [name for name in self.children if name != BROKER]:
            self.children.pop(name).end()
        self.start_workers()
        await _ready(self.producer, self.children, len(self.children) - 1)

    def checked(self, report: RunReport) -> RunReport:
        """A report of a run that ended well; raises BenchFailed."""
        if report.state == "done":
            return report
        errors = [report.error, *(branch.error for branch in report.branches)]
        reason = next((str(error.message) for error in errors if error), "no reason is given")
        raise BenchFailed(f"A run ended as {report.state}: {reason}")


@asynccontextmanager
async def installed(
    ground: Ground, settings: Settings, model: str, roles: Sequence[str]
) -> AsyncIterator[Installation]:
    """A new broker that keeps nothing, an empty store, and one worker for each of `roles`, ready."""
    home = Path(tempfile.mkdtemp(prefix="run-", dir=ground.directory))
    store = Path(tempfile.mkdtemp(prefix="run-", dir=ground.store))
    place = BrokerPlace(home / "broker", data_dir=None)
    check_socket_path(place.socket)
    place.runtime_dir.mkdir(mode=0o700)
    settings = settings.model_copy(update={"redis_url": place.url, "store_dir": store})
    children: dict[str, Child] = {}

    def start_workers() -> None:
        for index, role in enumerate(roles):
            name = f"{role}-{1 + list(roles[:index]).count(role)}"
            children[name] = _start(name, ground.worker_argv(role, model), home, settings)

    try:
        children[BROKER] = _start(BROKER, ground.broker_argv(place), home, settings)
        await _until(lambda: is_live(place.socket), children)
        start_workers()
        async with Producer(settings=settings) as producer:
            await _ready(producer, children, len(roles))
            yield Installation(settings, children, producer, start_workers)
    finally:
        for child in reversed(children.values()):
            child.end()
        shutil.rmtree(store, ignore_errors=True)


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment that makes another process load the same settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value is not None and value != field.get_default(call_default_factory=True):
            env[PREFIX + name.upper()] = str(value)
    return env


def _start(name: str, argv: Sequence[str], home: Path, settings: Settings) -> Child:
    return Child.start(name, argv, home / f"{name}.log", environment_of(settings))


async def _until(is_done: object, children: dict[str, Child]) -> None:
    deadline_s = time.monotonic() + READY_S
    assert callable(is_done)
    while not is_done():
        for child in children.values():
            child.check()
        if time.monotonic() > deadline_s:
            raise BenchFailed(f"Not ready after {READY_S:.0f} s: {', '.join(children)}.")
        await asyncio.sleep(POLL_S)


async def _ready(producer: Producer, children: dict[str, Child], count: int) -> None:
    """Wait until that many workers beat. (A worker of both roles beats for each.)"""
    pids = {child.pid for name, child in children.items() if name != BROKER}
    seen: set[int] = set()
    looking = asyncio.create_task(_look(producer, pids, seen), name="look for workers")
    try:
        await _until(lambda: len(seen) >= count or looking.done(), children)
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(producer: Producer, pids: set[int], seen: set[int]) -> None:
    while seen != pids:
        seen |= pids & {live.info.pid for live in await producer.workers()}
        await asyncio.sleep(POLL_S)
