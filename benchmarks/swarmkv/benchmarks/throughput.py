"""`swarmkv bench throughput`: documents that arrive while others are worked on, for one and more branch workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.corpus import Corpus, open_corpus
from swarmkv.benchmarks.environment import document, engine_settings
from swarmkv.benchmarks.fanout.system import greedy
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import Installation, installed
from swarmkv.benchmarks.intervals import Interval, length, overlap, utilisation
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.benchmarks.stats import Spread, p50_p99
from swarmkv.benchmarks.texts import Text
from swarmkv.producer import RunHandle, RunReport
from swarmkv.protocol.events import BranchDone, BranchStarted, PrefillDone
from swarmkv.protocol.settings import Settings

EARLY = 0.6  # of a document's branches come with it; the others are asked later
SPARE_PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """`gap_s`: seconds between arrivals, on average; `workers`: numbers of branch workers, each a case."""

    model_path: Path
    docs: int
    doc_tokens: int
    branches: int
    max_tokens: int
    workers: tuple[int, ...]
    rounds: int
    gap_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """Some prompts for a document, submitted so many seconds after the start."""

    at_s: float
    document: Text
    prompts: tuple[Text, ...]


@dataclass(slots=True)
class Followed:
    """When the events of one run were seen."""

    report: RunReport
    prefilled: list[Interval] = field(default_factory=list)
    waited: list[Interval] = field(default_factory=list)
    ran: list[Interval] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Round:
    """All runs of one round."""

    wall_s: float
    runs: Sequence[Followed]


def measure(ground: Ground, options: ThroughputOptions) -> dict[str, Any]:
    """The document of the results."""
    with open_corpus(options.model_path, ground.sample, options.seed) as corpus:
        asked = {**asdict(options), "model_path": options.model_path.name}
        cases = asyncio.run(_measure(ground, options, corpus))
        return document("throughput", asked, cases, model=corpus.facts(), settings=engine_settings(ground.settings))


async def _measure(ground: Ground, options: ThroughputOptions, corpus: Corpus) -> list[dict[str, Any]]:
    """Round by round every number of workers in turn, each in an installation of its own."""
    settings = _settings(ground.settings, options, corpus)
    rounds: dict[int, list[Round]] = {workers: [] for workers in options.workers}
    for number in range(options.rounds):
        arrivals = _arrivals(options, corpus, number)
        for workers in options.workers:
            ground.say(f"round {number + 1} of {options.rounds}: {workers} branch workers")
            roles = ["prefill", *["branch"] * workers]
            async with installed(ground, settings, str(options.model_path), roles) as installation:
                await installation.run("Warm up.", ["Ready?"] * workers, greedy(2))
                rounds[workers].append(await _round(installation, arrivals, options.max_tokens))
    return [_case(options, settings, workers, found) for workers, found in rounds.items()]


def _settings(settings: Settings, options: ThroughputOptions, corpus: Corpus) -> Settings:
    """The user's, with room for two documents beside what all slots need."""
    longest = max(len(prompt.ids) for prompt in corpus.prompts("sizes", options.branches))
    sizing = Sizing(2 * options.doc_tokens, settings.slots, longest + SPARE_PROMPT_TOKENS + options.max_tokens)
    return settings.model_copy(update={"n_ctx": max(settings.n_ctx, sizing.branch_cells)})


def _arrivals(options: ThroughputOptions, corpus: Corpus, number: int) -> list[Arrival]:
    dice = random.Random(f"{options.seed} arrivals {number}")  # noqa: S311 - a schedule, not secret
    at_s, arrivals = 0.0, []
    for index in range(options.docs):
        name = f"round {number}, document {index}"
        text = corpus.document(name, options.doc_tokens)
        prompts = tuple(corpus.prompts(name, options.branches))
        cut = max(1, round(options.branches * EARLY))
        arrivals.append(Arrival(at_s, text, prompts[:cut]))
        if prompts[cut:]:
            arrivals.append(Arrival(at_s + dice.expovariate(1 / options.gap_s), text, prompts[cut:]))
        at_s += dice.expovariate(1 / options.gap_s)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


async def _round(installation: Installation, arrivals: Sequence[Arrival], max_tokens: int) -> Round:
    started_s = perf_counter()
    following = [
        asyncio.create_task(_arrive(installation, arrival, started_s, max_tokens), name="arrival")
        for arrival in arrivals
    ]
    runs = await asyncio.gather(*following)
    return Round(perf_counter() - started_s, runs)


async def _arrive(installation: Installation, arrival: Arrival, started_s: float, max_tokens: int) -> Followed:
    await asyncio.sleep(max(0.0, started_s + arrival.at_s - perf_counter()))  # the schedule itself
    texts = [prompt.text for prompt in arrival.prompts]
    run = await installation.producer.submit(arrival.document.text, texts, sampling=greedy(max_tokens))
    return await _follow(installation, run)


async def _follow(installation: Installation, run: RunHandle) -> Followed:
    """Times as this process sees them, some milliseconds after they happened."""
    prefilled: list[Interval] = []
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    ready_s = perf_counter()
    async for event in run.events():
        now_s = perf_counter()
        if isinstance(event, PrefillDone):
            ready_s = now_s
            if not event.reused:
                prefilled.append((now_s - event.prefill_ms / 1000, now_s))
        elif isinstance(event, BranchStarted):
            starts.setdefault(event.branch, now_s)
        elif isinstance(event, BranchDone):
            ends[event.branch] = now_s
    report = installation.checked(await run.results())
    waited = [(min(ready_s, start_s), start_s) for start_s in starts.values()]
    ran = [(starts[branch], end_s) for branch, end_s in ends.items() if branch in starts]
    return Followed(report, prefilled, waited, ran)


def _case(options: ThroughputOptions, settings: Settings, workers: int, rounds: Sequence[Round]) -> dict[str, Any]:
    wall_s = Spread.of([one.wall_s for one in rounds])
    branches = options.docs * options.branches
    per_round = [_shares(one, settings.slots * workers) for one in rounds]
    restores = [one["restores"] for one in per_round]
    return {
        "workers": workers,
        "slots": settings.slots,
        "branches": branches,
        "document_tokens": options.doc_tokens,
        "wall_s": wall_s.median,
        "wall_s_spread": wall_s.as_json(),
        "branches_per_s": branches / wall_s.median,
        "tokens_per_s": branches * options.max_tokens / wall_s.median,
        "slot_utilisation": _middle([one["slot_utilisation"] for one in per_round]),
        "prefill_decode_overlap": _middle([one["prefill_decode_overlap"] for one in per_round]),
        "restores_per_branch": median(restores) / branches,
        "restores_per_document": median(restores) / options.docs,
        "queue_ms": p50_p99([value for one in per_round for value in one["queue_ms"]]),
    }


def _shares(one: Round, slots: int) -> dict[str, Any]:
    prefilled = [interval for run in one.runs for interval in run.prefilled]
    ran = [interval for run in one.runs for interval in run.ran]
    waited = [interval for run in one.runs for interval in run.waited]
    timings = [branch.timings_ms for run in one.runs for branch in run.report.branches]
    span_s = length(prefilled)
    return {
        "slot_utilisation": utilisation(ran, waited, slots),
        "prefill_decode_overlap": length(overlap(prefilled, ran)) / span_s if span_s else None,
        "restores": sum(timing.restore > 0 for timing in timings),
        "queue_ms": [timing.queue for timing in timings],
    }


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
