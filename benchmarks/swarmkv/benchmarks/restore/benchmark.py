"""`swarmkv bench restore`: documents of several lengths, then snapshots of gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.corpus import open_corpus
from swarmkv.benchmarks.environment import document, engine_settings
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.restore.documents import Snapshots
from swarmkv.benchmarks.restore.wide import wide_case
from swarmkv.benchmarks.restore.wide_model import write_wide_model


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Lengths of documents in tokens; sizes of synthetic snapshots in GB, none: leave them out."""

    model_path: Path
    tokens: tuple[int, ...]
    wide_gb: tuple[float, ...]
    rounds: int
    seed: int


def measure(ground: Ground, options: RestoreOptions) -> dict[str, Any]:
    """The document of the results. Raises BenchFailed, ModelError."""
    with open_corpus(options.model_path, ground.sample, options.seed) as corpus:
        texts = [corpus.document("restored", tokens).ids for tokens in options.tokens]
        facts = corpus.facts()
    snapshots = Remote(Snapshots, options.model_path, ground.settings, max(options.tokens), ground.store)
    cases = []
    try:
        for ids in texts:
            ground.say(f"{len(ids):,} tokens: prefill, then {options.rounds} rounds")
            cases.append(snapshots.call(Snapshots.case, ids, options.rounds))
    finally:
        snapshots.close()
    cases += _wide(ground, options)
    asked = {"tokens": options.tokens, "wide_gb": options.wide_gb, "rounds": options.rounds, "seed": options.seed}
    return document("restore", asked, cases, model=facts, settings=engine_settings(ground.settings))


def _wide(ground: Ground, options: RestoreOptions) -> Iterator[dict[str, Any]]:
    if not options.wide_gb:
        return
    path = write_wide_model(ground.directory / "wide.gguf")
    for size_gb in options.wide_gb:
        ground.say(f"a snapshot of {size_gb:g} GB: fill, then {options.rounds} rounds")
        yield wide_case(path, ground.settings, ground.store, size_gb, options.rounds)
