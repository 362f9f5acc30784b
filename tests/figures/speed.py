"""Rows about time: restoring, the first token, eight branches, and decoding beside a prefill."""

from __future__ import annotations

import numpy as np

from swarmkv.producer import RunReport
from swarmkv.protocol.events import PrefillProgress
from tests.figures.alone import AloneTimes, agents_anew, engine_alone, restores
from tests.figures.figure import Figure, middle
from tests.figures.lab import ANSWER, DOCUMENT_TOKENS, PROMPTS, Installation, Lab
from tests.new_process import in_a_new_process

ROUNDS = 3
NEIGHBOUR_TOKENS = 12_000  # its prefill must outlast sixteen slowed answers


async def restore(lab: Lab) -> list[Figure]:
    """A restore against the prefill that made the snapshot."""
    prefix = lab.text.prefix(lab.document("Restored"))
    times = in_a_new_process(restores, lab.model_path, prefix, ROUNDS)
    ratio = middle([prefill_s / restore_s for prefill_s, restore_s in times])
    prefill_s, restore_s = (middle(column) for column in zip(*times, strict=True))
    return [
        Figure(
            f"restore of a {DOCUMENT_TOKENS:,}-token snapshot against its prefill",
            ">= 1,000x faster",
            f"{ratio:,.0f}x ({restore_s * 1000:.1f} ms, {prefill_s:.2f} s)",
            ratio >= 1000,
            {"ratio": ratio, "restore_s": restore_s, "prefill_s": prefill_s},
        )
    ]


async def first_token(lab: Lab) -> list[Figure]:
    """The first token of one branch, its snapshot restored for it, against prefilling the document anew."""
    documents = [lab.document(title) for title in ("One", "Other")]
    ids = lab.text.prefix(documents[0]), [lab.text.suffix(PROMPTS[0])]
    # One resident: two documents that take turns are restored each time.
    async with lab.installation("prefill", "branch", residents=1) as installation:
        for document in documents:
            await installation.run(document, PROMPTS[:1])
        restored, resident, anew = [], [], []
        for _ in range(ROUNDS):
            for document in documents:
                restored.append(await _first_token_s(installation, document))
                resident.append(await _first_token_s(installation, document))
                anew += in_a_new_process(agents_anew, lab.model_path, *ids, 1)
    ratio = middle([slow / quick for slow, quick in zip(anew, restored, strict=True)])
    return [
        Figure(
            "first token of a branch on a ready snapshot, from job start, against prefilling anew",
            ">= 80x lower",
            f"{ratio:.0f}x ({middle(restored) * 1000:.0f} ms restored, {middle(resident) * 1000:.0f} ms resident, "
            f"{middle(anew):.2f} s anew)",
            ratio >= 80,
            {"ratio": ratio, "restored_s": restored, "resident_s": resident, "anew_s": anew},
        )
    ]


async def _first_token_s(installation: Installation, document: str) -> float:
    report = await installation.run(document, PROMPTS[:1])
    return report.branches[0].timings_ms.first_token / 1000


async def eight_branches(lab: Lab) -> list[Figure]:
    """Eight answers from a cold document, enqueue to last result, against agents and against the engine alone."""
    prompts = PROMPTS[:8]
    suffixes = [lab.text.suffix(prompt) for prompt in prompts]
    ours: list[float] = []
    agents: list[float] = []
    alone: list[AloneTimes] = []
    async with lab.installation("prefill", "branch") as installation:
        for number in range(ROUNDS):
            document = lab.document(f"Copy {number}")
            prefix = lab.text.prefix(document)
            ours.append(await installation.timed(document, prompts))
            agents.append(sum(in_a_new_process(agents_anew, lab.model_path, prefix, suffixes, ANSWER.max_tokens)))
            alone.append(in_a_new_process(engine_alone, lab.model_path, prefix, suffixes, ANSWER.max_tokens))
    ratio = middle([slow / quick for slow, quick in zip(agents, ours, strict=True)])
    alone_s = middle([times.total_s for times in alone])
    overhead = middle([whole / part.total_s for whole, part in zip(ours, alone, strict=True)]) - 1
    return [
        Figure(
            f"8 branches x {ANSWER.max_tokens} tokens, cold document, against 8 agents that prefill anew",
            ">= 5.5x faster",
            f"{ratio:.1f}x ({middle(ours):.2f} s, {middle(agents):.1f} s); the engine alone {alone_s:.2f} s, "
            f"so the queue adds {overhead:.0%}",
            ratio >= 5.5,
            {"ratio": ratio, "ours_s": ours, "agents_s": agents, "alone": [vars(times) for times in alone]},
        )
    ]


async def beside_a_prefill(lab: Lab) -> list[Figure]:
    """Sixteen branches while the other worker prefills, against the same alone."""
    document, alone, beside = lab.document("Decoded"), [], []
    async with lab.installation("prefill", "branch") as installation:
        await installation.run(document, PROMPTS[:1])
        for number in range(ROUNDS):
            alone.append(_tokens_per_s(await installation.run(document, PROMPTS)))
            neighbour = lab.document(f"Neighbour {number}", NEIGHBOUR_TOKENS)
            beside.append(await _beside(installation, document, neighbour))
    kept = middle([slowed / free for slowed, free in zip(beside, alone, strict=True)])
    return [
        Figure(
            "decode of 16 branches while another document is prefilled, against alone",
            ">= 35 %",
            f"{kept:.0%} ({middle(beside):.0f} of {middle(alone):.0f} tok/s)",
            kept >= 0.35,
            {"kept": kept, "beside_tokens_per_s": beside, "alone_tokens_per_s": alone},
        )
    ]


async def _beside(installation: Installation, document: str, neighbour: str) -> float:
    """Tokens a second of 16 branches during the whole of which `neighbour` was being prefilled."""
    other = await installation.producer.submit(neighbour, PROMPTS[:1], sampling=ANSWER)
    async for event in other.events():
        if isinstance(event, PrefillProgress):
            break
    rate = _tokens_per_s(await installation.run(document, PROMPTS))
    state = (await other.report()).state
    assert state == "prefilling", f"the neighbour's prefill ended too early: {state}"
    await other.cancel()
    await other.results(60)
    return rate


def _tokens_per_s(report: RunReport) -> float:
    """Tokens behind the first ones, over the time from the first first token to the last last one."""
    spans = [(branch.timings_ms.first_token, branch.timings_ms.total) for branch in report.branches]
    starts_ms, ends_ms = np.array(spans).T
    tokens = sum(branch.tokens.generated - 1 for branch in report.branches)
    return float(tokens / (ends_ms.max() - starts_ms.min()) * 1000)
