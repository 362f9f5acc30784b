"""A prefill worker and a branch worker on the same cores: each alone, and both at once."""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.corpus import Corpus
from swarmkv.benchmarks.fanout.system import ROLES, greedy
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import Installation, installed
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.benchmarks.texts import Text
from swarmkv.producer import RunReport

SPARE_PROMPT_TOKENS = 8


async def measure_neighbours(
    ground: Ground, model: str, corpus: Corpus, doc_tokens: int, branches: int, max_tokens: int, rounds: int
) -> dict[str, Any]:
    """Answers of a ready document while another is prefilled: their speed, and the time for both."""
    prompts = corpus.prompts("neighbours", branches)
    longest = max(len(prompt.ids) for prompt in prompts) + SPARE_PROMPT_TOKENS
    settings = Sizing(2 * doc_tokens, branches + 1, longest + max_tokens).settings(ground.settings)
    ready = corpus.document("neighbours", doc_tokens)
    found: list[dict[str, float]] = []
    async with installed(ground, settings, model, ROLES) as installation:
        await installation.run(ready.text, [prompts[0].text], greedy(2))
        for number in range(rounds):
            ground.say(f"decoding beside a prefill, round {number + 1} of {rounds}")
            fresh = [corpus.document(f"neighbour {number} {part}", doc_tokens) for part in ("alone", "beside")]
            found.append(await _round(installation, ready, prompts, fresh, max_tokens))
    middle = {name: median(one[name] for one in found) for name in found[0]}
    kept = median(one["beside_tokens_per_s"] / one["alone_tokens_per_s"] for one in found)
    ratio = median(one["together_s"] / (one["decode_s"] + one["prefill_s"]) for one in found)
    return {**middle, "decode_kept": kept, "together_vs_one_after_the_other": ratio}


async def _round(
    installation: Installation, ready: Text, prompts: list[Text], fresh: list[Text], max_tokens: int
) -> dict[str, float]:
    texts, answer = [prompt.text for prompt in prompts], greedy(max_tokens)
    started_s = perf_counter()
    alone = await installation.run(ready.text, texts, answer)
    decoded_s = perf_counter()
    await installation.run(fresh[0].text, texts[:1], greedy(1))
    prefilled_s = perf_counter()
    other = asyncio.create_task(installation.run(fresh[1].text, texts[:1], greedy(1)), name="neighbour")
    beside = await installation.run(ready.text, texts, answer)
    await other
    return {
        "decode_s": decoded_s - started_s,
        "prefill_s": prefilled_s - decoded_s,
        "together_s": perf_counter() - prefilled_s,
        "alone_tokens_per_s": _tokens_per_s(alone),
        "beside_tokens_per_s": _tokens_per_s(beside),
    }


def _tokens_per_s(report: RunReport) -> float:
    """Tokens behind the first ones, over the time from the first first token to the last one of all."""
    starts_ms = min(branch.timings_ms.first_token for branch in report.branches)
    ends_ms = max(branch.timings_ms.total for branch in report.branches)
    tokens = sum(branch.tokens.generated - 1 for branch in report.branches)
    return tokens / (ends_ms - starts_ms) * 1000
