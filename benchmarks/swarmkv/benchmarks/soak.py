"""`swarmkv bench soak`: mixed work for minutes or hours, and what grows meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from swarmkv.benchmarks.corpus import Corpus, open_corpus
from swarmkv.benchmarks.environment import document, engine_settings
from swarmkv.benchmarks.fanout.system import ROLES, greedy
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import Installation, installed
from swarmkv.benchmarks.processes import memory_bytes, open_files
from swarmkv.protocol.broker import connect

AT_ONCE = 3  # runs in flight
RUNS_A_DOCUMENT = 4
LONGEST_ANSWER = 48
CANCELLED = 0.1  # of the runs are cancelled on their way
SAMPLES = 240
LEAST_STEP_S = 0.5
OUT_OF_CELLS = "No KV cells"  # what a worker logs when its books and the context disagree


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """Documents of `doc_tokens` tokens at most, and half of that at least."""

    model_path: Path
    minutes: float
    doc_tokens: int
    seed: int


@dataclass(slots=True)
class Sample:
    """One look at all processes and at the store."""

    at_s: float
    memory: dict[str, int]
    files: dict[str, int]
    store_bytes: int
    redis_bytes: int
    slots_used: int
    cells_used: int


@dataclass(slots=True)
class Work:
    """What was done so far."""

    runs_done: int = 0
    runs_cancelled: int = 0
    branches_done: int = 0
    samples: list[Sample] = field(default_factory=list)


def measure(ground: Ground, options: SoakOptions) -> dict[str, Any]:
    """The document of the results. Raises BenchFailed when a run ends otherwise than asked."""
    with open_corpus(options.model_path, ground.sample, options.seed) as corpus:
        asked = {**asdict(options), "model_path": options.model_path.name}
        case = asyncio.run(_measure(ground, options, corpus))
        return document("soak", asked, [case], model=corpus.facts(), settings=engine_settings(ground.settings))


async def _measure(ground: Ground, options: SoakOptions, corpus: Corpus) -> dict[str, Any]:
    work, end_s = Work(), perf_counter() + options.minutes * 60
    async with installed(ground, ground.settings, str(options.model_path), ROLES) as installation:
        step_s = max(LEAST_STEP_S, options.minutes * 60 / SAMPLES)
        looking = asyncio.create_task(_watch(ground, installation, work, step_s), name="watch")
        try:
            workers = (_work(installation, options, corpus, work, number, end_s) for number in range(AT_ONCE))
            await asyncio.gather(*workers)
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
        work.samples.append(await _look(installation))
        logs = [child.log.read_text(errors="replace") for child in installation.children.values()]
        case = _case(options, work, installation)
        return {**case, "out_of_cells": sum(log.count(OUT_OF_CELLS) for log in logs)}


async def _work(
    installation: Installation, options: SoakOptions, corpus: Corpus, work: Work, number: int, end_s: float
) -> None:
    """One run after another until the time is over; each of these has documents of its own."""
    dice = random.Random(f"{options.seed} soak {number}")  # noqa: S311 - a choice, not secret
    count = 0
    while count == 0 or perf_counter() < end_s:
        name = f"soak {number}, document {count // RUNS_A_DOCUMENT}"
        size = random.Random(name).randint(options.doc_tokens // 2, options.doc_tokens)  # noqa: S311
        text = corpus.document(name, size).text
        prompts = [prompt.text for prompt in corpus.prompts(name, dice.randint(1, 2 * installation.settings.slots))]
        sampling = greedy(dice.randint(1, LONGEST_ANSWER))
        run = await installation.producer.submit(text, prompts, sampling=sampling)
        if dice.random() < CANCELLED:
            await asyncio.sleep(dice.random())  # somewhere on its way
            work.runs_cancelled += await run.cancel()
            await run.results()
        else:
            work.branches_done += len(installation.checked(await run.results()))
            work.runs_done += 1
        count += 1


async def _watch(ground: Ground, installation: Installation, work: Work, step_s: float) -> None:
    told_s = perf_counter()
    while True:
        work.samples.append(await _look(installation))
        if perf_counter() - told_s > 60:
            told_s = perf_counter()
            ground.say(f"{work.branches_done:,} branches of {work.runs_done:,} runs")
        await asyncio.sleep(step_s)  # the time between samples


async def _look(installation: Installation) -> Sample:
    children = installation.children
    branch = [live.info for live in await installation.producer.workers() if live.info.role == "branch"]
    return Sample(
        at_s=perf_counter(),
        memory={name: memory_bytes(child.pid) for name, child in children.items()},
        files={name: open_files(child.pid) for name, child in children.items()},
        store_bytes=_size_of(installation.settings.store_dir),
        redis_bytes=await _redis_bytes(installation.settings.redis_url),
        slots_used=sum(info.slots_used for info in branch),
        cells_used=sum(info.cells_used for info in branch),
    )


def _size_of(directory: Path) -> int:
    """Bytes of all files, those left out that go while they are looked at."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


async def _redis_bytes(url: str) -> int:
    client: Any = connect(url, timeout_s=5)
    try:
        return int((await client.info("memory"))["used_memory"])
    finally:
        await client.aclose(close_connection_pool=True)


def _case(options: SoakOptions, work: Work, installation: Installation) -> dict[str, Any]:
    first_s = work.samples[0].at_s
    at_s = [sample.at_s - first_s for sample in work.samples]
    processes = {
        name: {
            "memory_bytes": _course(at_s, [sample.memory[name] for sample in work.samples]),
            "open_files": _course(at_s, [sample.files[name] for sample in work.samples]),
        }
        for name in installation.children
    }
    return {
        "minutes": options.minutes,
        "runs_done": work.runs_done,
        "runs_cancelled": work.runs_cancelled,
        "branches_done": work.branches_done,
        "n_ctx": installation.settings.n_ctx,
        "processes": processes,
        "store_bytes": _course(at_s, [sample.store_bytes for sample in work.samples]),
        "redis_bytes": _course(at_s, [sample.redis_bytes for sample in work.samples]),
        "slots_used": _course(at_s, [sample.slots_used for sample in work.samples]),
        "cells_used": _course(at_s, [sample.cells_used for sample in work.samples]),
        "samples": [{**asdict(sample), "at_s": sample.at_s - first_s} for sample in work.samples],
    }


def _course(at_s: Sequence[float], values: Sequence[int]) -> dict[str, float]:
    """Where a value began, ended and peaked, and its slope in the second half, when all is warm."""
    half = len(values) // 2
    times, late = np.array(at_s[half:]), np.array(values[half:], float)
    slope = float(np.polyfit(times, late, 1)[0]) if len(late) > 2 else 0.0
    return {"first": values[0], "last": values[-1], "max": max(values), "per_hour": slope * 3600}
