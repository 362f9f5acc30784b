"""Rows about a system at rest: how soon it wakes, and what it costs meanwhile."""

from __future__ import annotations

import asyncio
from time import perf_counter

import psutil

from swarmkv.producer import Sampling
from swarmkv.protocol.events import BranchStarted
from tests.figures.figure import Figure, middle, share
from tests.figures.lab import PROMPTS, Installation, Lab

RUNS = 200
IDLE_S = 25.0
ONE_TOKEN = Sampling(temperature=0, max_tokens=1, ignore_eos=True)


async def wake_up(lab: Lab) -> list[Figure]:
    """From before the submission until a follower sees that a branch worker has started the job; idle CPU."""
    document = lab.document("Ready", 600)
    async with lab.installation("prefill", "branch") as installation:
        await installation.run(document, PROMPTS[:1])
        starts_ms = [await _started_ms(installation, document) for _ in range(RUNS)]
        cores = await _idle_cores(installation)
    p50_ms, p99_ms = middle(starts_ms), share(starts_ms, 99)
    used = ", ".join(f"{role} {part:.2%}" for role, part in cores.items())
    return [
        Figure(
            "enqueue to the branch worker's start of the job, idle system; a core used by an idle worker",
            "p50 <= 10 ms, p99 <= 50 ms; <= 1 %",
            f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms; {used}",
            p50_ms <= 10 and p99_ms <= 50 and max(cores.values()) <= 0.01,
            {"p50_ms": p50_ms, "p99_ms": p99_ms, "starts_ms": starts_ms, "idle_cores": cores},
        )
    ]


async def _started_ms(installation: Installation, document: str) -> float:
    started_s = perf_counter()
    run = await installation.producer.submit(document, PROMPTS[:1], sampling=ONE_TOKEN)
    async for event in run.events():
        if isinstance(event, BranchStarted):
            break
    took_ms = (perf_counter() - started_s) * 1000
    await run.results(60)
    return took_ms


async def _idle_cores(installation: Installation) -> dict[str, float]:
    """The part of a core that each idle worker uses, by role."""
    live = await installation.producer.workers()
    workers = {worker.info.role: psutil.Process(worker.info.pid) for worker in live}
    before = {role: _cpu_s(process) for role, process in workers.items()}
    started_s = perf_counter()
    await asyncio.sleep(IDLE_S)  # the measured time itself
    span_s = perf_counter() - started_s
    return {role: (_cpu_s(process) - before[role]) / span_s for role, process in workers.items()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
