"""Real model, a store for three of four documents, workers that are restarted: every fact is its document's own.

Every single branch of many more, by the tokens that it was given, is in tests/faults/test_isolation.py.
FAULTS=long: 24 branches for each document instead of 6.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.settings import MIB, Settings
from tests.processes import fleet_of
from tests.real_texts import COMPLETION, SPECIFICATION, Needle, needles
from tests.rounds import by_round

BRANCHES = by_round(6, 24)
GREEDY = Sampling(temperature=0, max_tokens=10)
STORE_BYTES = 10 * MIB  # three snapshots of the documents below

pytestmark = pytest.mark.real_model


def document_of(needle: Needle) -> str:
    opening, _, rest = SPECIFICATION.partition("\n\n")
    return f"{opening}\n\n{needle.sentence}\n\n{rest[:500]}"


@pytest.mark.timeout(by_round(180, 1_800))
@pytest.mark.parametrize("concurrency", [1, 16])
async def test_facts_stay_with_their_document_when_workers_and_snapshots_come_and_go(
    concurrency: int, settings: Settings, tmp_path: Path, real_model_path: Path
) -> None:
    facts = needles(seed=2)[:4]
    order = random.Random(concurrency).sample(facts * BRANCHES, k=len(facts) * BRANCHES)
    turn = asyncio.Semaphore(concurrency)
    prefills = 0

    async def ask(producer: Producer, needle: Needle) -> None:
        nonlocal prefills
        async with turn:
            run = await producer.submit(document_of(needle), [needle.prompt], template=COMPLETION, sampling=GREEDY)
            report = await run.results(120)
        prefills += report.prefills_run
        text = report.branches[0].text
        assert needle.code in text, text
        assert [other.code for other in facts if other is not needle and other.code in text] == []

    small = settings.model_copy(update={"store_budget_bytes": STORE_BYTES, "residents": 2})
    async with Producer(settings=settings) as producer:
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            with fleet_of(small, tmp_path / "logs") as fleet:
                for role in ("prefill", "branch"):
                    fleet.start(role, real_model_path, slots=concurrency)
                await fleet.ready(producer, 2)
                await asyncio.gather(*(ask(producer, needle) for needle in half))
    assert prefills > len(facts), "no snapshot was ever evicted"
