"""The row about SIGKILL, many times over: how long until all killed branches speak again, and what it cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter

from swarmkv.protocol.events import BranchDone, BranchText, Event
from tests.figures.figure import Figure, middle
from tests.figures.lab import PROMPTS, Installation, Lab
from tests.figures.survival import LONG_ANSWER, MAX_EXTRA_S, kill_busiest

ROUNDS = 20


@dataclass
class _Tally:
    """Of all rounds. `silent_s`: from the kill to the first text of the last branch's new attempt."""

    silent_s: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0


async def recovery(lab: Lab) -> list[Figure]:
    """SIGKILL of the busiest of two branch workers while 8 branches speak; another one is started in its place."""
    document, tally = lab.document("Recovered"), _Tally()
    async with lab.installation("prefill", "branch", "branch") as installation:
        for _ in range(ROUNDS):
            await _round(installation, document, tally)
            installation.fleet.start("branch", lab.model_path)
            await installation.fleet.ready(installation.producer, 3)
    slowest_s = max(tally.silent_s)
    return [
        Figure(
            f"recovery from SIGKILL of a branch worker over 8 branches, {ROUNDS} rounds; results lost, doubled",
            f"all speak again within {MAX_EXTRA_S:.0f} s; 0, 0",
            f"p50 {middle(tally.silent_s):.1f} s, max {slowest_s:.1f} s; {tally.lost}, {tally.doubled}",
            slowest_s <= MAX_EXTRA_S and not tally.lost and not tally.doubled,
            {"silent_s": tally.silent_s, "lost": tally.lost, "doubled": tally.doubled},
        )
    ]


async def _round(installation: Installation, document: str, tally: _Tally) -> None:
    prompts = PROMPTS[:8]
    run = await installation.producer.submit(document, prompts, sampling=LONG_ANSWER)
    events: list[Event] = []
    speaking: set[str] = set()
    waited_for: set[str] | None = None
    killed_s = 0.0
    async for event in run.events():
        events.append(event)
        if not isinstance(event, BranchText):
            continue
        speaking.add(event.branch)
        if waited_for is None and len(speaking) == len(prompts):
            waited_for, killed_s = await kill_busiest(installation, events), perf_counter()
        elif waited_for and event.attempt > 1:
            waited_for.discard(event.branch)
            if not waited_for:
                tally.silent_s.append(perf_counter() - killed_s)
    assert waited_for is not None, "the run ended before all branches were seen speaking"
    ends = Counter(event.branch for event in events if isinstance(event, BranchDone) and event.state == "done")
    tally.lost += len(prompts) - len(ends)
    tally.doubled += sum(ends.values()) - len(ends)
