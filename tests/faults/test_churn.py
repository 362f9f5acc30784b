"""Thousands of short branches leave nothing behind: cells, file handles, memory, store and Redis.

FAULTS=long: 2,000 branches.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.settings import MIB, Settings
from tests.fault_support import store_files
from tests.processes import Fleet, fleet_of
from tests.rounds import by_round
from tests.waiting import eventually

BRANCHES = by_round(300, 2_000)
PER_RUN = 10
N_CTX = 2048
DOCUMENTS = [f"Document {number}. " + "The retry limit is four. " * 25 for number in range(5)]  # a third of N_CTX
SHORT = Sampling(temperature=0, max_tokens=4, ignore_eos=True)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Footprint:
    """What an installation holds when nothing is going on."""

    handles: int
    rss_bytes: int
    files: int
    store_bytes: int
    lasting_keys: frozenset[str]
    jobs: int


def footprint(fleet: Fleet, settings: Settings, raw: Any) -> Footprint:
    workers = [psutil.Process(worker.pid) for worker in fleet.processes]
    snapshots, temporary = store_files(settings)
    names = [name.decode() for name in raw.keys("*")]
    return Footprint(
        handles=sum(worker.num_fds() for worker in workers),
        rss_bytes=sum(worker.memory_info().rss for worker in workers),
        files=len(snapshots) + len(temporary),
        store_bytes=sum((settings.store_dir / name).stat().st_size for name in snapshots),
        lasting_keys=frozenset(name for name in names if raw.ttl(name) == -1),
        jobs=sum(name.startswith("arq:") for name in names),
    )


async def churn(producer: Producer, count: int) -> None:
    """Runs of ten branches, over all documents in turn."""
    for number in range(count // PER_RUN):
        prompts = [f"What, {number}.{index}?" for index in range(PER_RUN)]
        run = await producer.submit(DOCUMENTS[number % len(DOCUMENTS)], prompts, sampling=SHORT)
        report = await run.results(60)
        assert report.state == "done", report


async def when_idle(producer: Producer, raw: Any) -> None:
    """arq's own bookkeeping comes behind the result."""

    async def is_idle() -> bool:
        return not raw.keys("arq:*") and all(live.info.slots_used == 0 for live in await producer.workers())

    await eventually(is_idle)


@pytest.fixture
async def fleet(settings: Settings, tmp_path: Path, tiny_llama_path: Path) -> AsyncIterator[Fleet]:
    with fleet_of(settings, tmp_path / "logs") as fleet:
        for role in ("prefill", "branch"):
            fleet.start(role, tiny_llama_path)
        yield fleet


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Room for three of the five documents, in the store and in the context."""
    return settings.model_copy(
        update={"store_budget_bytes": MIB, "n_ctx": N_CTX, "kv_type_k": "f32", "kv_type_v": "f32"}
    )


@pytest.mark.timeout(by_round(180, 3_600))
async def test_churn_leaves_everything_as_it_was(fleet: Fleet, settings: Settings) -> None:
    raw: Any = redis.Redis.from_url(settings.redis_url)
    async with Producer(settings=settings) as producer:
        await fleet.ready(producer, 2)
        await churn(producer, 100)  # pools and caches are filled first
        await when_idle(producer, raw)
        before = footprint(fleet, settings, raw)
        await churn(producer, BRANCHES)
        await when_idle(producer, raw)
        after = footprint(fleet, settings, raw)
        logger.info("%d branches: %s, then %s", BRANCHES, before, after)
        assert after.handles <= before.handles + 4
        assert after.rss_bytes - before.rss_bytes < 16 * MIB
        assert (after.files, after.store_bytes) == (before.files, before.store_bytes)
        assert after.jobs == before.jobs == 0
        assert after.lasting_keys == before.lasting_keys
        await every_cell_is_free(producer)
        only_what_expires_was_added(raw, after)
    raw.close()


async def every_cell_is_free(producer: Producer) -> None:
    """An answer that fills the context to the last cell finds room, and one more token would not fit."""
    document, prompt = DOCUMENTS[0], "All of it?"
    used = len(document) + len(f"\n\nQuestion: {prompt}\nAnswer:") + 1
    for too_many, state in ((0, "done"), (1, "failed")):
        whole = Sampling(temperature=0, max_tokens=N_CTX - used + too_many, ignore_eos=True)
        report = await (await producer.submit(document, [prompt], sampling=whole)).results(60)
        assert report.state == state, report
    assert report.branches[0].error is not None


def only_what_expires_was_added(raw: Any, after: Footprint) -> None:
    """When their time has come, runs, results and documents are gone: what is left is as after the first start."""
    for name in raw.keys("*"):
        if raw.ttl(name) >= 0 and not name.startswith(b"swarmkv:worker:"):
            raw.delete(name)
    workers = {name.decode() for name in raw.keys("swarmkv:worker:*")}
    assert {name.decode() for name in raw.keys("*")} <= after.lasting_keys | workers
    base = {
        keys.RUNS,
        keys.MODELS,
        keys.ASKED,
        keys.STORES,
        keys.SWEPT,
        keys.WORKERS,
        keys.key("model", alias="default"),
    }
    base |= {keys.DOCUMENTS, keys.DOCUMENT_BYTES}  # trimmed by the sweep
    assert after.lasting_keys <= base
