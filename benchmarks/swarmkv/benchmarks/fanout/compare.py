"""All schemes over all cases, taking turns, and the document of the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from swarmkv.benchmarks.corpus import Corpus
from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome, Scheme
from swarmkv.benchmarks.ground import Say
from swarmkv.benchmarks.stats import Spread, p50_p99
from swarmkv.protocol.errors import SwarmkvError

OURS, IDEAL, BASE = "swarmkv", "ideal", "reprefill"
BF16 = "_bf16"  # ends the names of our schemes when they run on BF16 weights
WARM_UP_TOKENS, WARM_UP_ANSWER_TOKENS = 64, 4
SLOW = 1.3  # a setting of a peer that takes so many times as long as its best one is not run again
Outcomes = dict[str, list[Outcome]]


@dataclass(frozen=True, slots=True)
class Family:
    """The settings of one peer: the best of them stands for it, in cold and in ready runs apart.

    `against` is the scheme of ours that runs on the same weights.
    """

    name: str
    members: tuple[Scheme, ...]
    against: str = OURS


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared: how many branches, tokens, rounds."""

    document_tokens: int
    branches: tuple[int, ...]
    max_tokens: int
    rounds: int


@dataclass(slots=True)
class Comparison:
    """Runs the schemes of `families` over the cases of `plan`."""

    plan: Plan
    families: Sequence[Family]
    corpus: Corpus
    say: Say
    failures: dict[str, SwarmkvError] = field(default_factory=dict)  # by scheme
    _dropped: dict[str, str] = field(default_factory=dict)  # why, by scheme
    _warm_ups: int = 0

    def run(self) -> Iterator[dict[str, Any]]:
        """One case of the results for each number of branches, the fewest first, as soon as it is measured."""
        with ExitStack() as stack:
            for family in self.families:
                for scheme in family.members:
                    stack.callback(scheme.close)
            for branches in sorted(self.plan.branches):
                yield self._case(branches)

    def _case(self, branches: int) -> dict[str, Any]:
        outcomes: Outcomes = defaultdict(list)
        for number in range(self.plan.rounds):
            case = self._texts(branches, number)
            for family, scheme in self._turns(number):
                self.say(f"{branches} branches, round {number + 1} of {self.plan.rounds}: {scheme.name}")
                if (outcome := self._outcome(scheme, case)) is not None:
                    outcomes[scheme.name].append(outcome)
                    self._drop_slow(family, outcomes)
        return case_document(self.plan, branches, self.families, outcomes, dict(self._dropped))

    def _outcome(self, scheme: Scheme, case: Case) -> Outcome | None:
        """None for a scheme that failed: it is not run again, and what the others took is kept."""
        try:
            scheme.setup()
            scheme.run(self._warm_up())
            return scheme.run(case)
        except SwarmkvError as exc:
            self.failures[scheme.name] = exc
            self._drop(scheme, f"failed: {exc.message}")
            return None

    def _drop(self, scheme: Scheme, reason: str) -> None:
        """Run a scheme no more; its memory is free for the others."""
        self._dropped[scheme.name] = reason
        self.say(f"{scheme.name}: {reason}")
        scheme.close()

    def _warm_up(self) -> Case:
        """A short request before each that is timed: a kernel may have taken weights from the memory of a scheme
        that waited for its turn, and whoever waits longest would pay most.
        """
        self._warm_ups += 1
        name = f"warm-up {self._warm_ups}"  # another document each time: one that is known wakes no prefill
        prompts = self.corpus.prompts(name, 2)
        document = self.corpus.document(name, min(WARM_UP_TOKENS, self.plan.document_tokens))
        return Case(document, prompts[:1], prompts[1:], WARM_UP_ANSWER_TOKENS, is_warm_up=True)

    def _texts(self, branches: int, number: int) -> Case:
        name = f"{branches} branches, round {number}"
        prompts = self.corpus.prompts(name, 2 * branches)
        document = self.corpus.document(name, self.plan.document_tokens)
        return Case(document, prompts[:branches], prompts[branches:], self.plan.max_tokens)

    def _turns(self, number: int) -> Iterator[tuple[Family, Scheme]]:
        """Every scheme that is still run, another one first in each round."""
        turns = [(family, scheme) for family in self.families for scheme in family.members]
        start = number % len(turns)
        for family, scheme in turns[start:] + turns[:start]:
            if scheme.name not in self._dropped:
                yield family, scheme

    def _drop_slow(self, family: Family, outcomes: Outcomes) -> None:
        """Give up settings that are far behind the family's best, cold and ready."""
        measured = [scheme for scheme in family.members if outcomes.get(scheme.name)]
        best = {
            kind: min(_median(outcomes[scheme.name], kind) for scheme in measured) for kind in (cold_of, ready_of)
        }
        for scheme in measured:
            behind = min(_median(outcomes[scheme.name], kind) / best[kind] for kind in (cold_of, ready_of))
            if behind > SLOW and scheme.name not in self._dropped:
                self._drop(scheme, f"{behind:.1f}x slower than the best setting: not run again")


def cold_of(outcome: Outcome) -> Measured:
    return outcome.cold


def ready_of(outcome: Outcome) -> Measured:
    """The run on a ready document; a scheme that keeps nothing takes as long as before."""
    return outcome.ready or outcome.cold


Kind = Callable[[Outcome], Measured]


def case_document(
    plan: Plan, branches: int, families: Sequence[Family], outcomes: Outcomes, dropped: dict[str, str]
) -> dict[str, Any]:
    """A case: cold at its top, the same for a ready snapshot under `ready`."""
    return {
        "branches": branches,
        "document_tokens": plan.document_tokens,
        "max_tokens": plan.max_tokens,
        "rounds": plan.rounds,
        "extrapolated": sorted(name for name, runs in outcomes.items() if any(run.extrapolated for run in runs)),
        "dropped": dropped,
        **_side(families, outcomes, cold_of),
        "ready": _side(families, outcomes, ready_of),
    }


def _side(families: Sequence[Family], outcomes: Outcomes, kind: Kind) -> dict[str, Any]:
    best = {family.name: name for family in families if (name := _best(family, outcomes, kind))}
    spreads = {name: Spread.of(_walls(outcomes[run], kind)) for name, run in best.items()}
    wall_s = {name: spread.median for name, spread in spreads.items()}
    ours = [kind(outcome).facts for outcome in outcomes.get(OURS, [])]
    alone = [kind(outcome).facts for outcome in outcomes.get(IDEAL, [])]
    return {
        "wall_s": wall_s,
        "wall_s_spread": {name: spread.as_json() for name, spread in spreads.items()},
        "variants": _variants(families, outcomes, kind),
        "best_variant": {name: run for name, run in best.items() if run != name},
        "speedup_vs_reprefill": _ratio(wall_s, BASE, OURS),
        "speedup_vs": {
            family.name: _ratio(wall_s, family.name, family.against)
            for family in families
            if family.name in wall_s and family.name != family.against
        },
        "overhead_vs_ideal": _minus_one(_ratio(wall_s, OURS, IDEAL)),
        **_engine_facts(ours, alone),
        "reprefill_activation_ms": _middle(_all(outcomes.get(BASE, []), cold_of, "first_token_ms")),
        "bf16": _bf16(wall_s),
    }


def _engine_facts(ours: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """From the system's own runs; without them, from the engine alone."""
    restores = [value for facts in ours for value in facts["restore_ms"]]
    restores = restores or [facts["restore_s"] * 1000 for facts in alone]
    return {
        "prefill_s": _middle([facts["prefill_s"] for facts in ours or alone]),
        "restore_ms": _middle(restores),
        "restore_gbps": _middle([facts["restore_gbps"] for facts in alone]),
        "memcpy_gbps": _middle([facts["memcpy_gbps"] for facts in alone]),
        "payload_bytes": _middle([facts["payload_bytes"] for facts in alone]),
        "ideal_steps_s": {
            step: _middle([facts[step] for facts in alone])
            for step in ("prefill_s", "export_s", "restore_s", "fork_s", "prompts_s", "decode_s")
        },
        "activation_ms": p50_p99([value for facts in ours for value in facts["activation_ms"]]),
        "queue_ms": p50_p99([value for facts in ours for value in facts["queue_ms"]]),
        "tokens_reused": _middle([facts["tokens_reused"] for facts in ours]),
        "tokens_recomputed": _middle([facts["tokens_recomputed"] for facts in ours]),
        "prefills_run": _middle([facts["prefills_run"] for facts in ours]),
    }


def _bf16(wall_s: dict[str, float]) -> dict[str, float | None] | None:
    """The comparison on BF16 weights, for the peer that has no others."""
    ours, alone = OURS + BF16, IDEAL + BF16
    if ours not in wall_s:
        return None
    return {
        "speedup_vs_vllm": _ratio(wall_s, "vllm", ours),
        "overhead_vs_ideal": _minus_one(_ratio(wall_s, ours, alone)),
    }


def _variants(families: Sequence[Family], outcomes: Outcomes, kind: Kind) -> dict[str, dict[str, float]]:
    """Every setting of the peers that have several."""
    return {
        family.name: {
            scheme.name: _median(outcomes[scheme.name], kind)
            for scheme in family.members
            if outcomes.get(scheme.name)
        }
        for family in families
        if len(family.members) > 1
    }


def _best(family: Family, outcomes: Outcomes, kind: Kind) -> str | None:
    names = [scheme.name for scheme in family.members if outcomes.get(scheme.name)]
    return min(names, key=lambda name: _median(outcomes[name], kind), default=None)


def _walls(runs: Sequence[Outcome], kind: Kind) -> list[float]:
    return [kind(run).wall_s for run in runs]


def _median(runs: Sequence[Outcome], kind: Kind) -> float:
    return median(_walls(runs, kind))


def _all(runs: Sequence[Outcome], kind: Kind, fact: str) -> list[float]:
    return [value for run in runs for value in kind(run).facts[fact]]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _ratio(wall_s: dict[str, float], slow: str, quick: str) -> float | None:
    """How many times as long the first takes; None when one of them was not run."""
    return wall_s[slow] / wall_s[quick] if slow in wall_s and quick in wall_s else None


def _minus_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1
