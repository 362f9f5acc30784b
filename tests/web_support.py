"""A monitor on a port of its own, a worker whose answers a test writes by hand, and runs by the thousand."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import redis
import uvicorn
from playwright.async_api import Browser, async_playwright
from starlette.applications import Starlette

from swarmkv.monitor.web.app import create_app
from swarmkv.protocol import keys
from swarmkv.protocol.codec import encode
from swarmkv.protocol.errors import DecodeFailed
from swarmkv.protocol.events import BranchText
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch, TakenPrefill, error_info
from swarmkv.protocol.messages import (
    BranchResult,
    BranchTimings,
    PrefixSpec,
    RunSpec,
    SnapshotInfo,
    TokenCounts,
    WorkerInfo,
)
from swarmkv.protocol.settings import Settings
from tests.waiting import eventually, wait_until

LEASE_MS = 60_000
CHROMIUM = "/usr/bin/chromium"
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """Serve an app on a free port of 127.0.0.1 in a thread of its own; its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@contextmanager
def monitor_of(settings: Settings, **changes: object) -> Iterator[str]:
    """A monitor with these settings; its address."""
    settings = settings.model_copy(update=changes)
    with serving(create_app(settings, settings.redis_url, "127.0.0.1")) as address:
        yield address


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Debian's browser, without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            yield browser
        finally:
            await browser.close()


class StandIn:
    """A worker of both roles that says what a test tells it to."""

    def __init__(self, ledger: Ledger, *, model: str = "default", slots: int = 64) -> None:
        self.ledger = ledger
        self.model = model
        self.infos = [
            WorkerInfo(
                id=f"{role}-1",
                role=role,
                model=model,
                pid=4242,
                host="host-1",
                slots=slots,
                n_ctx=16_384,
                identity="id",
            )
            for role in ("prefill", "branch")
        ]
        self.said: dict[tuple[str, int], str] = {}
        self.prefix_tokens = 0

    async def arrive(self) -> None:
        """Be known and alive."""
        await self.ledger.fleet.announce(self.model, identity="id", fingerprint="print")
        for info in self.infos:
            await self.ledger.fleet.beat(info, [], lease_ms=LEASE_MS)

    async def prefill(self) -> None:
        """Take and finish the prefills that are queued."""
        taken = await self.ledger.jobs.take_prefills(self.model, "prefill-1", limit=100, lease_ms=LEASE_MS)
        await self.publish(taken, tokens=1_000, prefill_ms=800.0)

    async def publish(self, taken: Sequence[TakenPrefill], *, tokens: int, prefill_ms: float) -> None:
        """Finish prefills."""
        self.prefix_tokens = tokens if taken else self.prefix_tokens
        for job in taken:
            info = SnapshotInfo(
                snapshot=job.prefix_id,
                prefix_tokens=tokens,
                size_bytes=tokens * 5_000,
                prefill_ms=prefill_ms,
                identity="id",
                host="host-1",
            )
            await self.ledger.jobs.register("prefill-1", job, info, decoded=True, ttl_ms=600_000)

    async def take(self, count: int) -> list[TakenBranch]:
        """Take that many branches, as soon as they are queued."""
        taken: list[TakenBranch] = []

        async def has_all() -> bool:
            await self.prefill()
            taken.extend(
                await self.ledger.jobs.take_branches(
                    self.model, "branch-1", limit=count - len(taken), lease_ms=LEASE_MS
                )
            )
            return len(taken) >= count

        await eventually(has_all)
        return taken

    async def say(self, branches: Sequence[TakenBranch], text: str) -> None:
        """Stream a piece of text of each."""
        events: dict[str, list[Any]] = {}
        for branch in branches:
            place = (branch.run_id, branch.index)
            before = self.said.get(place, "")
            event = BranchText(branch=branch.spec.name, attempt=branch.attempt, offset=len(before), text=text)
            events.setdefault(branch.run_id, []).append(event)
            self.said[place] = before + text
        await self.ledger.jobs.emit(events)

    async def finish(self, branch: TakenBranch, text: str | None = None, *, error: str = "") -> None:
        """End a branch with what it said, or with an error."""
        said = self.said.pop((branch.run_id, branch.index), "")
        failure = error_info(DecodeFailed(error, hint="Try it again.")) if error else None
        answer = said if text is None else text
        generated = max(1, len(answer) // 4)
        decode_ms = 21.0 * generated + 7 * branch.index
        result = BranchResult(
            text=answer,
            finish_reason="error" if error else "stop",
            error=failure,
            tokens=TokenCounts(reused=self.prefix_tokens, prompt=9 + branch.index, generated=generated),
            timings_ms=BranchTimings(
                queue=3, restore=2, prompt=60, first_token=84, decode=decode_ms, total=84 + decode_ms
            ),
        )
        await self.ledger.jobs.finish("branch-1", [Outcome(branch, "failed" if error else "done", result)])


def many_runs(url: str, count: int, *, name: str = "review") -> None:
    """Runs that have ended, written in one go, as the ledger leaves them; numbered from 0, the oldest first."""
    prefix = PrefixSpec(model="default", document="d" * 32)
    now_ms = int(time.time() * 1000)
    with redis.Redis.from_url(url) as client:
        for start in range(0, count, 2_000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, min(count, start + 2_000)):
                run = f"{number:012x}"
                created_ms = now_ms - (count - number) * 1_000
                spec = RunSpec(run_id=run, name=f"{name}-{number}", prefix=prefix, document_bytes=10)
                fields = {
                    "spec": encode(spec),
                    "state": "failed" if number % 10 == 0 else "done",
                    "name": spec.name,
                    "model": "default",
                    "document_name": f"paper-{number % 7}.txt",
                    "prefix": prefix.prefix_id,
                    "branches": 8,
                    "open": 0,
                    "done": 0 if number % 10 == 0 else 8,
                    "failed": 8 if number % 10 == 0 else 0,
                    "cancelled": 0,
                    "created_ms": created_ms,
                    "opened_ms": created_ms,
                    "finished_ms": created_ms + 1_000,
                    "deadline_ms": created_ms + 60_000,
                    "prefills_run": 0,
                    "prefill_ms": 0,
                }
                pipe.hset(keys.key("run", run=run), mapping=fields)
                pipe.zadd(keys.RUNS, {run: created_ms})
            pipe.execute()
