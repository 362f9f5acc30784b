"""`swarmkv bench queue`: what everything around the engine costs, with an engine that takes no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.environment import document
from swarmkv.benchmarks.fanout.system import ROLES, greedy
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import NULL_MODEL, Installation, installed
from swarmkv.benchmarks.processes import cpu_s
from swarmkv.benchmarks.stats import Spread, p50_p99
from swarmkv.protocol.broker import connect
from swarmkv.protocol.events import BranchStarted

DOCUMENT = "A document of which nothing is read."
FEW_TOKENS, MANY_TOKENS = 1, 33  # of an answer: the difference is what a token costs
WARM_UP_JOBS = 50


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """`starts`: single branches that are timed one after another."""

    jobs: int
    starts: int
    rounds: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What Redis has done since it started; commands inside scripts count, too."""

    commands: int
    scripts: int
    bytes_in: int
    bytes_out: int

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.commands - other.commands,
            self.scripts - other.scripts,
            self.bytes_in - other.bytes_in,
            self.bytes_out - other.bytes_out,
        )


@dataclass(frozen=True, slots=True)
class Burst:
    """All jobs at once: seconds from before the submission to the last result, and what Redis did."""

    wall_s: float
    traffic: Traffic


def measure(ground: Ground, options: QueueOptions) -> dict[str, Any]:
    """The document of the results."""
    case = asyncio.run(_measure(ground, options))
    return document("queue", asdict(options), [case])


async def _measure(ground: Ground, options: QueueOptions) -> dict[str, Any]:
    settings = ground.settings.model_copy(update={"null_engine": True})
    async with installed(ground, settings, NULL_MODEL, ROLES) as installation:
        await _burst(installation, WARM_UP_JOBS, FEW_TOKENS)
        ground.say(f"{options.starts} branches, one after another")
        starts_ms = [await _started_ms(installation) for _ in range(options.starts)]
        ground.say(f"idle for {options.idle_s:g} s")
        idle_cpu_pct = await _idle_cpu_pct(installation, options.idle_s)
        few, many = [], []
        for number in range(options.rounds):
            ground.say(f"{options.jobs} branches at once, round {number + 1} of {options.rounds}")
            few.append(await _burst(installation, options.jobs, FEW_TOKENS))
            many.append(await _burst(installation, options.jobs, MANY_TOKENS))
    return {
        "jobs": options.jobs,
        "slots": settings.slots,
        "enqueue_to_start_ms": p50_p99(starts_ms),
        "idle_cpu_pct": idle_cpu_pct,
        **_rates(options.jobs, few, many),
    }


def _rates(jobs: int, few: Sequence[Burst], many: Sequence[Burst]) -> dict[str, Any]:
    """Per branch from the jobs of one token; per token from what more of them cost."""
    per_s = Spread.of([jobs / burst.wall_s for burst in few])
    one, all_ = _median_traffic(few), _median_traffic(many)
    tokens = jobs * (MANY_TOKENS - FEW_TOKENS)
    return {
        "jobs_per_s": per_s.median,
        "jobs_per_s_spread": per_s.as_json(),
        f"jobs_per_s_{MANY_TOKENS}_tokens": median(jobs / burst.wall_s for burst in many),
        "redis_commands_per_branch": one.commands / jobs,
        "redis_scripts_per_branch": one.scripts / jobs,
        "redis_bytes_per_branch": (one.bytes_in + one.bytes_out) / jobs,
        "redis_commands_per_token": (all_.commands - one.commands) / tokens,
        "redis_bytes_per_token": (all_.bytes_in + all_.bytes_out - one.bytes_in - one.bytes_out) / tokens,
    }


def _median_traffic(bursts: Sequence[Burst]) -> Traffic:
    """The traffic of the burst in the middle."""
    return sorted((burst.traffic for burst in bursts), key=lambda traffic: traffic.commands)[len(bursts) // 2]


async def _burst(installation: Installation, jobs: int, max_tokens: int) -> Burst:
    most = installation.settings.max_branches
    sizes = [min(most, jobs - start) for start in range(0, jobs, most)]
    before = await _traffic(installation.settings.redis_url)
    started_s = perf_counter()
    prompts = [[f"Question {number}?" for number in range(size)] for size in sizes]
    await asyncio.gather(*(installation.run(DOCUMENT, part, greedy(max_tokens)) for part in prompts))
    wall_s = perf_counter() - started_s
    return Burst(wall_s, await _traffic(installation.settings.redis_url) - before)


async def _traffic(url: str) -> Traffic:
    client: Any = connect(url, timeout_s=5)
    try:
        stats, commands = await client.info("stats"), await client.info("commandstats")
    finally:
        await client.aclose(close_connection_pool=True)
    scripts = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
    return Traffic(
        commands=stats["total_commands_processed"],
        scripts=sum(commands[name]["calls"] for name in scripts if name in commands),
        bytes_in=stats["total_net_input_bytes"],
        bytes_out=stats["total_net_output_bytes"],
    )


async def _started_ms(installation: Installation) -> float:
    """From before the submission until a follower sees that a branch worker has started the job."""
    started_s = perf_counter()
    run = await installation.producer.submit(DOCUMENT, ["Question?"], sampling=greedy(FEW_TOKENS))
    async for event in run.events():
        if isinstance(event, BranchStarted):
            break
    took_ms = (perf_counter() - started_s) * 1000
    installation.checked(await run.results())
    return took_ms


async def _idle_cpu_pct(installation: Installation, idle_s: float) -> dict[str, float]:
    """The part of a core, in percent, that each process uses while nothing is to do."""
    pids = {name: child.pid for name, child in installation.children.items()}
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    started_s = perf_counter()
    await asyncio.sleep(idle_s)  # the measured time itself
    span_s = perf_counter() - started_s
    return {name: (cpu_s(pid) - before[name]) / span_s * 100 for name, pid in pids.items()}
