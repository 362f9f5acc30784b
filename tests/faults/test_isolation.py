"""No branch ever decodes from another document: many documents, a small store, workers that come and go.

FAULTS=long: 20 documents with 500 branches each.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swarmkv.producer import Producer, RunReport, Sampling
from swarmkv.protocol.errors import SnapshotMissing
from swarmkv.protocol.settings import MIB, Settings
from swarmkv.snapshots import SnapshotStore
from tests.fault_support import FaultyFleet, faulty_fleet
from tests.isolation_support import ANSWER_TOKENS, Ask, cold_answers, documents, is_bit_equal, token_digest
from tests.new_process import in_a_new_process
from tests.rounds import by_round
from tests.waiting import eventually

DOCUMENTS = by_round(8, 20)
BRANCHES = by_round(160, 10_000)
DOCUMENT_BYTES = 620  # three snapshots fit into the store, a fourth does not
PROMPTS = [f"What is the secret word, number {number}?" for number in range(10)]
GREEDY = Sampling(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)

logger = logging.getLogger(__name__)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    changes = {"store_budget_bytes": MIB, "kv_type_k": "f32", "kv_type_v": "f32", "n_ctx": 8192}
    return settings.model_copy(update=changes)


class Load:
    """Branches in random order, one a run, so many at a time; every answer is checked when it comes."""

    def __init__(self, producer: Producer, asks: list[Ask], concurrency: int) -> None:
        self.order = random.Random(concurrency).choices(asks, k=BRANCHES)
        self.seen = Counter[str]()
        self.runs: dict[str, Ask] = {}
        self._producer = producer
        self._turn = asyncio.Semaphore(concurrency)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for ask in self.order:
                await self._turn.acquire()
                group.create_task(self._one(ask))

    async def reaches(self, share: float) -> None:
        """Wait until so much of it has been answered."""

        async def has_reached() -> bool:
            return self.seen["branches"] >= share * len(self.order)

        await eventually(has_reached, timeout_s=3600)

    async def _one(self, ask: Ask) -> None:
        try:
            run = await self._producer.submit(ask.document, [ask.prompt], sampling=GREEDY)
            self.runs[run.id] = ask
            self._check(ask, await run.results(120))
        finally:
            self._turn.release()

    def _check(self, ask: Ask, report: RunReport) -> None:
        (branch,) = report.branches
        assert branch.error is None, branch.error
        assert branch.text == ask.answer, f"the answer of another document, or of none: {report.run_id}"
        self.seen["branches"] += 1
        self.seen["attempts"] += branch.attempts
        self.seen["prefills"] += report.prefills_run


async def restart_workers(load: Load, fleet: FaultyFleet, start: Callable[[], Awaitable[None]]) -> None:
    """Once politely, once by SIGKILL, in the middle of the work."""
    for share, ends_politely in ((1 / 3, True), (2 / 3, False)):
        await load.reaches(share)
        for worker in [worker for worker in fleet.processes if worker.process.poll() is None]:
            await asyncio.to_thread(worker.end if ends_politely else worker.kill)
        await start()


@pytest.mark.timeout(by_round(180, 7_200))
@pytest.mark.parametrize("concurrency", [1, 16])
async def test_every_branch_is_answered_from_its_own_document(
    concurrency: int, settings: Settings, tmp_path: Path, tiny_llama_path: Path
) -> None:
    texts = documents(2 * DOCUMENTS, DOCUMENT_BYTES)
    asks = telling(in_a_new_process(cold_answers, tiny_llama_path, settings, texts, PROMPTS))
    record = tmp_path / "prefixes"
    async with Producer(settings=settings) as producer:
        with faulty_fleet(settings, tmp_path / "logs") as fleet:

            async def start() -> None:
                prefill = fleet.start("prefill", tiny_llama_path)
                faults = {"record_prefixes": str(record)}
                slots = max(1, concurrency // 2)
                branch = [fleet.start_faulty("branch", tiny_llama_path, faults, slots=slots) for _ in range(2)]
                await fleet.beats(producer, prefill, *branch)

            await start()
            load = Load(producer, asks, concurrency)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                group.create_task(restart_workers(load, fleet, start))
            assert load.seen["prefills"] > DOCUMENTS, "no snapshot was ever evicted"
            prefixes = recorded(record)
            foreign = [job for job, run, digest in prefixes if digest != token_digest(load.runs[run].document)]
            assert foreign == []
            assert len(prefixes) >= BRANCHES
            sampled = await rerun_alone(producer, settings, tiny_llama_path, asks)
    logger.info("%s, %d prefixes, %d re-run alone", dict(load.seen), len(prefixes), sampled)


def telling(asks: list[Ask]) -> list[Ask]:
    """Those of as many documents as are wanted, each of which has questions that tell it from all others."""
    counts = Counter(ask.document for ask in asks)
    chosen = [document for document, count in counts.items() if count >= len(PROMPTS) // 2][:DOCUMENTS]
    assert len(chosen) == DOCUMENTS
    return [ask for ask in asks if ask.document in chosen]


def recorded(path: Path) -> list[tuple[str, str, str]]:
    """Job, run, and the digest of the ids of the snapshot that it was given."""
    lines = (line.split() for line in path.read_text().splitlines())
    return [(job, job.split(":")[1], digest) for job, digest in lines]


async def rerun_alone(producer: Producer, settings: Settings, model_path: Path, asks: list[Ask]) -> int:
    """A question of each document again: the snapshot as it is stored now equals a cold run, bit by bit."""
    store = SnapshotStore(settings.store_dir, settings.store_budget_bytes)
    samples = {ask.document: ask for ask in asks}
    for ask in samples.values():
        payload = None
        while payload is None:  # a prefill that was still running may have pushed it out again
            report = await (await producer.submit(ask.document, [ask.prompt], sampling=GREEDY)).results(60)
            assert report.branches[0].text == ask.answer
            payload = stored_payload(store, report)
        assert await asyncio.to_thread(in_a_new_process, is_bit_equal, model_path, settings, payload, ask)
    return len(samples)


def stored_payload(store: SnapshotStore, report: RunReport) -> bytes | None:
    assert report.snapshot is not None
    try:
        with store.open(report.snapshot) as snapshot:
            return bytes(snapshot.payload)
    except SnapshotMissing:
        return None
