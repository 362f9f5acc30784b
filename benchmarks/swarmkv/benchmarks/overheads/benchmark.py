"""`swarmkv bench overheads`: what a worker costs beside llama.cpp, and what two of them cost each other."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.corpus import Corpus, open_corpus
from swarmkv.benchmarks.environment import document, engine_settings
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.overheads.neighbours import measure_neighbours
from swarmkv.benchmarks.overheads.restart import measure_restart
from swarmkv.benchmarks.overheads.steps import StepTimes
from swarmkv.benchmarks.remote import Remote


@dataclass(frozen=True, slots=True)
class OverheadOptions:
    """One document, so many branches with answers of so many tokens."""

    model_path: Path
    doc_tokens: int
    branches: int
    max_tokens: int
    rounds: int
    seed: int


def measure(ground: Ground, options: OverheadOptions) -> dict[str, Any]:
    """The document of the results."""
    with open_corpus(options.model_path, ground.sample, options.seed) as corpus:
        case = {
            "branches": options.branches,
            "document_tokens": options.doc_tokens,
            "python": _python(ground, options, corpus),
            **asyncio.run(_workers(ground, options, corpus)),
        }
        asked = {**asdict(options), "model_path": options.model_path.name}
        settings = engine_settings(ground.settings)
        return document("overheads", asked, [case], model=corpus.facts(), settings=settings)


def _python(ground: Ground, options: OverheadOptions, corpus: Corpus) -> dict[str, Any]:
    ground.say(f"steps of {options.branches} branches")
    prefix = corpus.document("steps", options.doc_tokens).ids
    prompts = [prompt.ids for prompt in corpus.prompts("steps", options.branches)]
    steps = Remote(StepTimes, options.model_path, ground.settings, prefix, prompts, options.max_tokens)
    try:
        return {
            "greedy": steps.call(StepTimes.shares, 0.0, options.rounds),
            "sampled": steps.call(StepTimes.shares, 0.8, options.rounds),
        }
    finally:
        steps.call(StepTimes.close)
        steps.close()


async def _workers(ground: Ground, options: OverheadOptions, corpus: Corpus) -> dict[str, Any]:
    model = str(options.model_path)
    beside = (options.doc_tokens, options.branches, options.max_tokens, options.rounds)
    return {
        "neighbours": await measure_neighbours(ground, model, corpus, *beside),
        "restart": await measure_restart(ground, model, corpus, options.doc_tokens, options.rounds),
    }
