"""Rows about the monitor's page: its weight with ten thousand runs, its price while branches stream, its delay."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil

from swarmkv.producer import Producer
from swarmkv.protocol.broker import connect
from swarmkv.protocol.ledger import Ledger, TakenBranch
from swarmkv.protocol.settings import Settings
from tests.conftest import server_binary, start_server, stop_server
from tests.figures.figure import Figure, middle
from tests.figures.lab import Lab
from tests.processes import environment_of
from tests.web_support import StandIn, chromium, many_runs

RUNS = 10_000
VIEWERS = 3
BRANCHES = 50
FLUSH_S = 0.05  # as workers write
SPAN_S = 20.0
_SEEN = """() => {
  window.delays = [];
  let last = "";
  setInterval(() => {
    const said = document.querySelector('[data-tail="0"]').textContent.match(/T(\\d+\\.\\d+) $/);
    if (said && said[1] !== last) { last = said[1]; window.delays.push(Date.now() - 1000 * Number(last)); }
  }, 5);
}"""


async def page(_: Lab) -> list[Figure]:
    """The page as a process of its own, over a broker of its own."""
    with tempfile.TemporaryDirectory() as directory:
        server = start_server(str(server_binary("valkey")), Path(directory), "valkey")
        try:
            settings = Settings(_env_file=None, redis_url=server.url)
            many_runs(server.url, RUNS)
            with _monitor(settings) as (process, address):
                return [await _weight(address), *await _streaming(settings, process, address)]
        finally:
            stop_server(server)


async def _weight(address: str) -> Figure:
    async with httpx.AsyncClient(base_url=address, headers={"accept": "text/html"}) as client:
        started_s = time.perf_counter()
        first = await client.get("/runs")
        first_ms = (time.perf_counter() - started_s) * 1000
        later_ms = [(await client.get("/runs")).elapsed.total_seconds() * 1000 for _ in range(20)]
    async with chromium() as browser:
        tab = await browser.new_page()
        await tab.goto(f"{address}/runs")
        paint_ms = await tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        sent_bytes = await tab.evaluate(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
            ".reduce((sum, entry) => sum + entry.transferSize, 0)"
        )
    values = {"first_ms": first_ms, "later_ms": later_ms, "paint_ms": paint_ms, "sent_bytes": sent_bytes}
    return Figure(
        f"list of {RUNS:,} runs: bytes in all, first paint in a new browser; first answer, later ones",
        "<= 100 KB, <= 1 s",
        f"{sent_bytes / 1024:.0f} KB ({len(first.content) / 1024:.0f} KB of it the page), {paint_ms:.0f} ms; "
        f"{first_ms:.0f} ms, {middle(later_ms):.0f} ms",
        sent_bytes <= 100 * 1024 and paint_ms <= 1_000,
        values,
    )


async def _streaming(settings: Settings, process: psutil.Process, address: str) -> list[Figure]:
    async with _talking(settings) as (run_id, said):
        seeing = [asyncio.Event() for _ in range(VIEWERS)]
        viewers = [asyncio.create_task(_view(f"{address}/live/runs/{run_id}", event)) for event in seeing]
        async with asyncio.timeout(30):
            for event in seeing:
                await event.wait()
        before, before_s, before_said = process.cpu_times(), time.perf_counter(), said[0]
        await asyncio.sleep(SPAN_S)  # the measured time itself
        after, span_s = process.cpu_times(), time.perf_counter() - before_s
        share = (after.user + after.system - before.user - before.system) / span_s
        rate = (said[0] - before_said) / span_s
        for viewer in viewers:
            viewer.cancel()
        delays_ms = await _delays_ms(f"{address}/runs/{run_id}")
    return [
        Figure(
            f"the monitor's part of a core: {VIEWERS} viewers, {BRANCHES} branches streaming",
            "<= 5 %",
            f"{share:.1%} at {rate:,.0f} pieces of text a second",
            share <= 0.05,
            {"share": share, "pieces_per_s": rate},
        ),
        Figure(
            "from a word's writing to Redis until it stands on the page in a browser",
            "p50 <= 500 ms",
            f"p50 {middle(delays_ms):.0f} ms",
            middle(delays_ms) <= 500,
            {"delays_ms": delays_ms},
        ),
    ]


@contextlib.asynccontextmanager
async def _talking(settings: Settings) -> AsyncIterator[tuple[str, list[int]]]:
    """A run whose branches all talk, each word the time at which it was said; its id, and how many were said."""
    client = connect(settings.redis_url, timeout_s=5)
    worker = StandIn(Ledger(client, max_events=settings.max_events))
    await worker.arrive()
    said = [0]
    async with Producer(settings=settings) as producer:
        run = await producer.submit("Some document.", [f"Question {number}?" for number in range(BRANCHES)])
        talker = asyncio.create_task(_talk(worker, await worker.take(BRANCHES), said))
        try:
            yield run.id, said
        finally:
            talker.cancel()
            await asyncio.wait({talker})
    await client.aclose(close_connection_pool=True)


async def _talk(worker: StandIn, branches: list[TakenBranch], said: list[int]) -> None:
    while True:
        at_s = time.time()
        await worker.say(branches, f"T{at_s:.3f} ")
        said[0] += len(branches)
        await asyncio.sleep(max(0.0, FLUSH_S - (time.time() - at_s)))


async def _view(address: str, seeing: asyncio.Event) -> None:
    async with httpx.AsyncClient(timeout=None) as client, client.stream("GET", address) as answer:
        async for _ in answer.aiter_bytes():
            seeing.set()


async def _delays_ms(address: str) -> list[float]:
    async with chromium() as browser:
        tab = await browser.new_page()
        await tab.goto(address)
        await tab.locator('[data-tail="0"]').wait_for()
        await tab.evaluate(_SEEN)
        await tab.wait_for_timeout(SPAN_S * 1000)
        delays: list[float] = await tab.evaluate("window.delays")
        return delays


@contextlib.contextmanager
def _monitor(settings: Settings) -> Iterator[tuple[psutil.Process, str]]:
    command = [sys.executable, "-m", "swarmkv.cli", "monitor", "--port", "0"]
    with subprocess.Popen(command, env=environment_of(settings), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+:\d+", process.stderr.readline())
            assert found is not None
            yield psutil.Process(process.pid), found.group()
        finally:
            process.terminate()
