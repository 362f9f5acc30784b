"""Rows about what is computed: how often, and how exactly."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from swarmkv.producer import Sampling
from tests.decode_probe import logits_in_a_new_process, probing
from tests.engine_driver import engine_config, random_tokens
from tests.figures.figure import Figure
from tests.figures.lab import PROMPTS, Installation, Lab
from tests.forced import Comparison, compare
from tests.new_process import in_a_new_process
from tests.real_texts import COMPLETION, Needle, needles
from tests.tiny_models import tiny_llama

SHORT = Sampling(temperature=0, max_tokens=10)
WINDOW = 512
FORCED_TOKENS = 256
LENGTHS = {"W-1": WINDOW - 1, "W": WINDOW, "W+1": WINDOW + 1, "2W": 2 * WINDOW, "5W": 5 * WINDOW}


async def prefills(lab: Lab) -> list[Figure]:
    """One prefill for eight branches, none for eight more."""
    async with lab.installation("prefill", "branch") as installation:
        first, second = [await installation.run(lab.document("Counted"), PROMPTS[:8]) for _ in range(2)]
    counts = [first.prefills_run, second.prefills_run]
    recomputed = sum(branch.tokens.recomputed for report in (first, second) for branch in report.branches)
    reused = min(branch.tokens.reused for report in (first, second) for branch in report.branches)
    return [
        Figure(
            "prefills for one document with 8 branches, at once and cold; submitted again",
            "exactly 1, then 0",
            f"{counts[0]}, then {counts[1]}",
            counts == [1, 0],
            {"prefills": counts},
        ),
        Figure(
            "prefix tokens recomputed by branches",
            "0",
            f"{recomputed} ({reused:,} reused by each)",
            recomputed == 0 and reused == first.document_tokens,
            {"recomputed": recomputed, "reused": reused},
        ),
    ]


async def full_attention(lab: Lab) -> list[Figure]:
    """Bit-equal logits on a tiny model with full attention."""
    is_equal = in_a_new_process(_is_bit_equal, lab.directory)
    return [
        Figure(
            "exactness, full attention (tiny, F32): cold, forked, restored in another process",
            "logits bit-equal",
            "bit-equal" if is_equal else "not bit-equal",
            is_equal,
        )
    ]


def _is_bit_equal(directory: Path) -> bool:
    config = engine_config(tiny_llama(directory / "tiny.gguf"))
    prefix, prompt = random_tokens(700, seed=1), random_tokens(20, seed=2)
    with probing(config) as probe:
        payload = probe.export(prefix)
        cold = probe.logits_cold(prefix, prompt)
        forked = probe.logits_forked(payload, len(prefix), prompt)
    restored = logits_in_a_new_process(directory, config, {"case": (payload, len(prefix), prompt)})["case"]
    return np.array_equal(cold, forked) and np.array_equal(cold, restored)


async def sliding_window(lab: Lab) -> list[Figure]:
    """Teacher-forced distributions of restored branches around the window, and facts found there."""
    found = {name: _compare(lab, length) for name, length in LENGTHS.items()}
    is_ok = {name: _is_within(found[name], LENGTHS[name]) for name in LENGTHS}
    facts = await _facts_found(lab)
    return [
        Figure(
            f"exactness, sliding window of {WINDOW}, {FORCED_TOKENS} teacher-forced tokens, against a cold run",
            "W-1, W: bit-equal; beyond: KL <= 2x, top-1 >= -3 points of flash attention on against off; fact found",
            "\n".join([*(f"{name}: {_described(found[name])}" for name in LENGTHS), f"facts found: {facts} of 5"]),
            all(is_ok.values()) and facts == len(LENGTHS),
            {name: asdict(comparison) for name, comparison in found.items()},
        )
    ]


def _compare(lab: Lab, length: int) -> Comparison:
    ids = lab.text.prefix(lab.document("Compared", length + FORCED_TOKENS))
    return compare(lab.model_path, ids[:length], ids[length:], lab.directory, with_flash=length > WINDOW)


def _is_within(found: Comparison, length: int) -> bool:
    return found.restored.is_bit_equal if length <= WINDOW else found.is_as_close_as_flash


def _described(found: Comparison) -> str:
    if found.flash is None:
        return "bit-equal" if found.restored.is_bit_equal else f"KL {found.restored.mean_kl:.1e}"
    restored, flash = found.restored, found.flash
    return (
        f"KL {restored.mean_kl:.1e} (flash {flash.mean_kl:.1e}), top-1 {restored.top1:.1%} (flash {flash.top1:.1%})"
    )


async def _facts_found(lab: Lab) -> int:
    async with lab.installation("prefill", "branch") as installation:
        pairs = zip(LENGTHS.values(), needles(), strict=False)
        return sum([await _is_found(lab, installation, length, needle) for length, needle in pairs])


async def _is_found(lab: Lab, installation: Installation, length: int, needle: Needle) -> bool:
    document = lab.text.document(length, needle)
    run = await installation.producer.submit(document, [needle.prompt], template=COMPLETION, sampling=SHORT)
    return needle.code in (await run.results(60)).branches[0].text
