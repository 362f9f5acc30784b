"""The row about a branch worker that is killed in the middle of eight answers."""

from __future__ import annotations

import signal
from collections import Counter
from time import perf_counter

from swarmkv.producer import Sampling
from swarmkv.protocol.events import BranchDone, BranchStarted, BranchText, Event
from tests.figures.figure import Figure
from tests.figures.lab import PROMPTS, Installation, Lab

LONG_ANSWER = Sampling(temperature=0, max_tokens=160, ignore_eos=True)
MAX_EXTRA_S = 15.0


async def killed_worker(lab: Lab) -> list[Figure]:
    """SIGKILL once all eight speak, with a second branch worker running; against an undisturbed run."""
    document, prompts = lab.document("Survived"), PROMPTS[:8]
    async with lab.installation("prefill", "branch", "branch") as installation:
        await installation.run(document, prompts[:1])
        undisturbed_s = await installation.timed(document, prompts, LONG_ANSWER)
        killed_s, endings = await _killed(installation, document, prompts)
    extra_s = killed_s - undisturbed_s
    is_whole = len(endings) == len(prompts) and all(states == ["done"] for states in endings.values())
    return [
        Figure(
            "SIGKILL of the branch worker while 8 branches decode, another one running",
            f"all 8 done, once each, <= {MAX_EXTRA_S:.0f} s later than without",
            f"{'all 8 done, once each' if is_whole else endings}, {extra_s:+.1f} s "
            f"({killed_s:.1f} s, {undisturbed_s:.1f} s without)",
            is_whole and extra_s <= MAX_EXTRA_S,
            {"extra_s": extra_s, "killed_s": killed_s, "undisturbed_s": undisturbed_s, "endings": endings},
        )
    ]


async def _killed(
    installation: Installation, document: str, prompts: list[str]
) -> tuple[float, dict[str, list[str]]]:
    """Seconds to the last result, and the state of every ending by branch."""
    started_s = perf_counter()
    run = await installation.producer.submit(document, prompts, sampling=LONG_ANSWER)
    events: list[Event] = []
    is_killed = False
    async for event in run.events():
        events.append(event)
        speaking = {seen.branch for seen in events if isinstance(seen, BranchText)}
        if not is_killed and len(speaking) == len(prompts):
            await kill_busiest(installation, events)
            is_killed = True
    took_s = perf_counter() - started_s
    assert is_killed, "the run ended before all branches were seen speaking"
    endings: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, BranchDone):
            endings.setdefault(event.branch, []).append(event.state)
    return took_s, endings


async def kill_busiest(installation: Installation, events: list[Event]) -> set[str]:
    """SIGKILL the worker that started most of the branches; these."""
    started = [event for event in events if isinstance(event, BranchStarted)]
    name = Counter(event.worker for event in started).most_common(1)[0][0]
    pid = next(worker.info.pid for worker in await installation.producer.workers() if worker.info.id == name)
    process = next(process for process in installation.fleet.processes if process.pid == pid)
    process.send(signal.SIGKILL)
    return {event.branch for event in started if event.worker == name}
