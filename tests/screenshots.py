"""`python -m tests.screenshots` draws each page of the monitor in both themes into docs/screenshots.

What is shown is made up: a few models, an hour of statistics, a run of eight reviewers that is at work.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import redis
from playwright.async_api import Browser, Page

from swarmkv.producer import Producer
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.codec import encode
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import AuditEntry, Ledger
from swarmkv.protocol.messages import PrefixSpec, RunSpec, StoredSnapshot, StoreInfo, WorkerInfo
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.statistics import BOUNDS_MS, COUNTERS, STAGES, bucket_field
from tests.conftest import server_binary, start_server, stop_server
from tests.web_support import StandIn, chromium, monitor_of

FOLDER = Path(__file__).parent.parent / "docs" / "screenshots"
DESKTOP = {"width": 1180, "height": 740}
PHONE = {"width": 390, "height": 844}
MODELS = ("gemma-3-27b", "qwen-3-14b")
PAPERS = ("service-agreement.md", "EP3921477.txt", "firmware-audit.c", "annual-report-2025.txt", "protocol-v4.md")
QUESTIONS = {
    "liability": "What is the liability cap?",
    "termination": "With what notice can the licence be ended?",
    "retry-limits": "How many retransmissions are allowed?",
    "security": "Which cipher protects a frame?",
    "power-budget": "What may a node draw while it sleeps?",
    "conformance": "Who certifies a device?",
    "frame-layout": "In which byte does the payload begin?",
    "patent-claims": "Which claims depend on claim 1?",
}
ANSWERS = {
    "liability": "Liability is capped at the fees paid in the twelve months before the claim, except for gross "
    "negligence, for which section 9.4 knows no cap.",
    "termination": "Either party may end it with ninety days' written notice to the end of a quarter.",
    "retry-limits": "Section 4.2 allows four; table 7 says five. The sections do not agree.",
    "security": "Frames are protected by AES-256-GCM with a nonce of ninety-six bits that is never ",
    "power-budget": "Eleven microwatts on average, measured over an hour; bursts of two milliseconds are ",
    "frame-layout": "In byte fourteen, behind the header and the extension ",
}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        server = start_server(str(server_binary("valkey")), Path(directory), "valkey")
        try:
            asyncio.run(_draw(server.url))
        finally:
            stop_server(server)


async def _draw(url: str) -> None:
    settings = Settings(_env_file=None, redis_url=url)
    _write_past_runs(url)
    _write_statistics(url)
    async with _installation(settings) as run_id:
        with monitor_of(settings) as address:
            async with chromium() as browser:
                await _all_pages(browser, address, run_id)


async def _all_pages(browser: Browser, address: str, run_id: str) -> None:
    pages = {
        "overview": "/",
        "runs": "/runs",
        "run": f"/runs/{run_id}",
        "branch": f"/runs/{run_id}/branches/0",
        "new": "/new",
        "snapshots": "/snapshots",
        "workers": "/workers",
        "dead": "/dead",
        "audit": "/audit",
    }
    for theme in ("light", "dark"):
        page = await browser.new_page(viewport=DESKTOP, color_scheme=theme)  # type: ignore[arg-type]
        for name, path in pages.items():
            await _shoot(page, address + path, FOLDER / f"{name}-{theme}.png")
        await page.close()
    page = await browser.new_page(viewport=PHONE, color_scheme="light", device_scale_factor=1.5)  # type: ignore[arg-type]
    await _shoot(page, address + pages["run"], FOLDER / "run-phone.png")


async def _shoot(page: Page, address: str, path: Path) -> None:
    await page.goto(address)
    if await page.locator("#live").is_visible():
        await page.locator("#live.on").wait_for()
    await page.wait_for_timeout(1_200)  # for the text that is being said
    await page.screenshot(path=path)


@asynccontextmanager
async def _installation(settings: Settings) -> AsyncIterator[str]:
    """Workers, a store, a run at work, something given up; the run's id."""
    client = connect(settings.redis_url, timeout_s=5)
    ledger = Ledger(client, max_events=settings.max_events)
    worker = StandIn(ledger, model=MODELS[0])
    document = "The liability of either party is capped. " * 900
    async with Producer(settings=settings) as producer:
        await worker.arrive()
        run = await producer.submit(
            document,
            list(QUESTIONS.items()),
            model=MODELS[0],
            name="Service agreement, second draft",
            document_name=PAPERS[0],
        )
        await _work(worker)
        prefix = PrefixSpec(model=MODELS[0], document=digest_bytes(document.encode())).prefix_id
        snapshots = [prefix, *(digest_bytes(str(number).encode()) for number in range(6))]
        await _report_store(ledger, snapshots)
        await _give_up(ledger, settings.redis_url, run.id)
        for action, target, outcome in (
            ("pin snapshot", prefix, "The snapshot is pinned: it is not evicted."),
            ("pause", "branch-2", "The worker takes no more jobs; 3 go on."),
            ("retry", run.id, "1 branch is queued again."),
            ("cancel", "0000000000b3", "Run 0000000000b3: cancelled."),
        ):
            await ledger.audit.record(AuditEntry("admin token", "127.0.0.1", action, target, outcome))
        beats = asyncio.create_task(_beat(ledger, _workers(snapshots)))
        yield run.id
        beats.cancel()
    await client.aclose(close_connection_pool=True)


async def _work(worker: StandIn) -> None:
    """Work that takes its time: the pauses are the lengths of the bars in the pictures."""
    await asyncio.sleep(0.35)
    taken = await worker.ledger.jobs.take_prefills(worker.model, "prefill-1", limit=1, lease_ms=600_000)
    await asyncio.sleep(0.9)
    await worker.publish(taken, tokens=8_204, prefill_ms=6_150)
    branches = await worker.take(7)
    for branch in branches:
        await worker.say([branch], ANSWERS.get(branch.spec.name, ""))
    await asyncio.sleep(0.6)
    for branch in branches[:3]:
        await worker.finish(branch)
    await worker.finish(branches[5], error="llama.cpp refused a batch of 7 rows: code -3.")


def _workers(snapshots: list[str]) -> list[WorkerInfo]:
    """Workers as they describe themselves."""
    rng = random.Random(7)
    now_ms = int(time.time() * 1000)
    kinds = (
        ("prefill", 1, MODELS[0], "running", 1, 8_204),
        ("branch", 1, MODELS[0], "running", 3, 11_620),
        ("branch", 2, MODELS[0], "paused", 0, 8_204),
        ("prefill", 2, MODELS[1], "running", 0, 0),
        ("branch", 3, MODELS[1], "draining", 5, 24_100),
    )
    return [
        WorkerInfo.model_validate(
            {
                "id": f"{role}-{number}",
                "role": role,
                "model": model,
                "pid": 4_200 + number,
                "host": "node-a",
                "slots": 16 if role == "branch" else 1,
                "slots_used": used,
                "n_ctx": 32_768,
                "started_ms": now_ms - rng.randrange(3_600_000, 90_000_000),
                "state": state,
                "cells_used": cells,
                "residents": tuple(snapshots[:2]) if role == "branch" else (),
                "tokens_per_s": round(rng.uniform(150, 310), 1) if used else 0.0,
                "rss_bytes": rng.randrange(3 << 30, 9 << 30),
                "device": "CPU",
                "version": "0.1.0",
                "store": "s1",
            }
        )
        for role, number, model, state, used, cells in kinds
    ]


async def _beat(ledger: Ledger, workers: list[WorkerInfo]) -> None:
    while True:
        for info in workers:
            await ledger.fleet.beat(info, [], lease_ms=600_000)
        await asyncio.sleep(0.5)


async def _report_store(ledger: Ledger, snapshots: list[str]) -> None:
    """A store as its workers describe it."""
    rng = random.Random(8)
    now_ms = int(time.time() * 1000)
    listed = tuple(
        StoredSnapshot(
            key=key,
            tokens=8_204 if number == 0 else rng.randrange(3_000, 24_000),
            size_bytes=rng.randrange(40 << 20, 420 << 20),
            created_ms=now_ms - number * 1_900_000 - 90_000,
            used_ms=now_ms - number * 700_000,
            is_pinned=number == 2,
        )
        for number, key in enumerate(snapshots)
    )
    used = sum(item.size_bytes for item in listed)
    store = StoreInfo(
        id="s1",
        host="node-a",
        path="/dev/shm/swarmkv-1000",
        used_bytes=used,
        limit_bytes=4 << 30,
        num_snapshots=len(listed),
        snapshots=listed,
    )
    await ledger.stores.report(store, ttl_ms=600_000)


async def _give_up(ledger: Ledger, url: str, run: str) -> None:
    """Two entries of the dead-letter list, as the scripts leave them."""
    now_ms = int(time.time() * 1000)
    message, hint = "Its worker died 2 times while it ran alone.", "Look at the worker's log, mend it, and retry."
    with redis.Redis.from_url(url) as client:
        for index, name in ((5, "conformance"), (6, "frame-layout")):
            fields = {
                "name": name,
                "model": MODELS[0],
                "code": "crashes_worker",
                "message": message,
                "hint": hint,
                "attempts": 4 - index % 2,
                "crashes": 3,
                "solo_crashes": 2,
                "rebuilds": 0,
                "dead_ms": now_ms - index * 240_000,
            }
            client.hset(keys.key("dead", run=run, index=index), mapping=fields)
            client.zadd(keys.DEAD, {f"{run}:{index}": now_ms + 600_000})


def _write_past_runs(url: str) -> None:
    rng = random.Random(3)
    now_ms = int(time.time() * 1000)
    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(1_284):
            run, paper, model = f"{rng.getrandbits(48):012x}", rng.choice(PAPERS), rng.choice(MODELS)
            created_ms = now_ms - int(number * 61_000 + rng.random() * 40_000) - 20_000
            branches = rng.choice((4, 8, 8, 12, 50))
            failed = rng.choice((0,) * 12 + (1, branches))
            cancelled = branches if number % 37 == 5 else 0
            failed = 0 if cancelled else failed
            state = (
                "cancelled"
                if cancelled
                else "failed"
                if failed == branches
                else "completed_with_errors"
                if failed
                else "done"
            )
            spec = RunSpec(
                run_id=run,
                name=f"{paper.rsplit('.', 1)[0]} review {number % 9 + 1}",
                document_bytes=60_000,
                prefix=PrefixSpec(model=model, document=digest_bytes(paper.encode())),
                document_name=paper,
            )
            fields = {
                "spec": encode(spec),
                "state": state,
                "name": spec.name,
                "model": model,
                "document_name": paper,
                "prefix": spec.prefix.prefix_id,
                "branches": branches,
                "open": 0,
                "done": branches - failed - cancelled,
                "failed": failed,
                "cancelled": cancelled,
                "created_ms": created_ms,
                "opened_ms": created_ms,
                "finished_ms": created_ms + rng.randrange(2_000, 48_000),
                "deadline_ms": created_ms + 86_400_000,
                "prefills_run": 0,
                "prefill_ms": 0,
            }
            pipe.hset(keys.key("run", run=run), mapping=fields)
            pipe.zadd(keys.RUNS, {run: created_ms})
        pipe.execute()


def _state_of(branches: int, failed: int, cancelled: int) -> str:
    if cancelled:
        return "cancelled"
    return "failed" if failed == branches else "completed_with_errors" if failed else "done"


def _write_statistics(url: str) -> None:
    """An hour of counts by minute, and where they stand now."""
    rng = random.Random(5)
    minute_now = int(time.time()) // 60
    with redis.Redis.from_url(url) as client:
        for model in MODELS:
            totals = dict.fromkeys(COUNTERS, 0) | {"since_ms": (minute_now - 9_000) * 60_000}
            client.sadd(keys.MODELS, model)
            for minute in range(minute_now - 62, minute_now + 1):
                _count_a_minute(totals, rng)
                client.hset(keys.key("model_stats_minute", minute=minute, alias=model), mapping=dict(totals))
            client.hset(keys.key("model_stats", alias=model), mapping=dict(totals))


def _count_a_minute(totals: dict[str, int], rng: random.Random) -> None:
    branches, runs = rng.randrange(6, 44), rng.randrange(1, 6)
    for name, value in {
        "branches_done": branches,
        "branches_failed": rng.random() < 0.06,
        "runs_done": runs,
        "runs_submitted": runs,
        "snapshot_hits": runs - 1,
        "snapshot_misses": 1,
        "prefills": 1,
        "tokens_generated": branches * 96,
        "tokens_reused": branches * 7_900,
        "tokens_prefilled": 7_900,
        "tokens_prompt": branches * 30,
        "prefill_saved_ms": (branches - 1) * 5_100,
        "evictions": rng.random() < 0.3,
        "retries": rng.random() < 0.05,
    }.items():
        totals[name] = totals.get(name, 0) + int(value)
    typical_ms = dict(zip(STAGES, (18, 5_400, 4, 240, 22, 3_900, 9_500), strict=True))
    for stage in STAGES:
        for _ in range(1 if stage == "prefill" else branches):
            took_ms = typical_ms[stage] * rng.lognormvariate(0, 0.5)
            bound = next((bound for bound in BOUNDS_MS if took_ms <= bound), BOUNDS_MS[-1])
            for name, value in (
                (bucket_field(stage, bound), 1),
                (f"{stage}:count", 1),
                (f"{stage}:sum_us", int(took_ms * 1_000)),
            ):
                totals[name] = totals.get(name, 0) + value


if __name__ == "__main__":
    main()
