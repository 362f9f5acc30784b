"""All workers are stopped and started again; the store keeps its snapshots."""

from __future__ import annotations

from statistics import median
from typing import Any

from swarmkv.benchmarks.corpus import Corpus
from swarmkv.benchmarks.fanout.system import ROLES, greedy
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import installed
from swarmkv.benchmarks.sizing import Sizing

OWN_TOKENS = 64  # of a prompt and its answer


async def measure_restart(
    ground: Ground, model: str, corpus: Corpus, doc_tokens: int, rounds: int
) -> dict[str, Any]:
    """What the first branch of new workers takes, of a document that old ones prefilled."""
    settings = Sizing(doc_tokens, ground.settings.slots, OWN_TOKENS).settings(ground.settings)
    text, [prompt] = corpus.document("restart", doc_tokens).text, corpus.prompts("restart", 1)
    prefills, first_ms, restore_ms = 0, list[float](), list[float]()
    async with installed(ground, settings, model, ROLES) as installation:
        await installation.run(text, [prompt.text], greedy(1))
        for number in range(rounds):
            ground.say(f"restart {number + 1} of {rounds}")
            await installation.restart_workers()
            report = await installation.run(text, [prompt.text], greedy(1))
            prefills += report.prefills_run
            first_ms.append(report.branches[0].timings_ms.first_token)
            restore_ms.append(report.branches[0].timings_ms.restore)
    return {
        "prefills_run": prefills,
        "first_token_ms": median(first_ms),
        "restore_ms": median(restore_ms),
        "rounds": rounds,
    }
