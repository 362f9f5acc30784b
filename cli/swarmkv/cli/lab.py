"""Measures the candidates of `swarmkv tune`: every measurement in a fresh process, in rounds.

All candidates take their turn in each round, each time in another order, so that a machine that is slower for a
while, or after certain work, is so for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from swarmkv.cli.children import Child, ChildFailed
from swarmkv.protocol.settings import Settings
from swarmkv.workers.trials import BRANCHES, Candidate, Measured, Scenario

if TYPE_CHECKING:
    from swarmkv.workers.engine.measure import Part

CROWD = 64  # branches
_MODULE = "swarmkv.workers.engine.measure"
_READY = "ready"
_RESIDENTS = 2
_BRANCH_TOKENS = 64  # of a prompt, rather too many
_SPARE_CELLS = 512

Key = tuple[Candidate, Scenario]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What every measurement computes."""

    document_tokens: int
    answer_tokens: int
    rounds: int


@dataclass(slots=True)
class Series:
    """The measurements of all rounds, and why a candidate has none."""

    measured: dict[Key, list[Measured]] = field(default_factory=dict)
    failures: dict[Candidate, str] = field(default_factory=dict)

    def middle(self, key: Key) -> Measured:
        """The median of each figure; all of them 0 when there is none."""
        rounds = self.measured.get(key, [])
        if not rounds:
            return Measured()
        branches = rounds[0].decode_tps
        return Measured(
            prefill_tps=median(one.prefill_tps for one in rounds),
            decode_tps={count: median(one.decode_tps[count] for one in rounds) for count in branches},
            beside_s=median(one.beside_s for one in rounds),
        )

    def costs_s(self, key: Key) -> list[float]:
        """What the reference work takes, round by round."""
        return [one.cost_s(key[1]) for one in self.measured.get(key, [])]


@dataclass(frozen=True, slots=True)
class Lab:
    """A model on this machine. `env` is for the children: without what loading llama.cpp here has set."""

    path: Path
    settings: Settings
    work: Work
    env: Mapping[str, str]

    def rounds(self, default: Candidate, candidates: Iterable[Candidate], report: Report) -> Series:
        """Measure all, round by round. Raises ChildFailed when the default itself cannot be measured."""
        series = Series()
        keys = _turns(default, list(candidates))
        for number in range(1, self.work.rounds + 1):
            for candidate, scenario in _shuffled(keys, number):
                if candidate not in series.failures:
                    report(f"round {number} of {self.work.rounds}, {scenario}: {candidate.label}")
                    self._try((candidate, scenario), series)
        return series

    def _try(self, key: Key, series: Series) -> None:
        candidate, scenario = key
        try:
            measured = self.measure(candidate, scenario)
        except ChildFailed as exc:
            if not candidate.changes:
                raise
            series.failures[candidate] = exc.message
        else:
            series.measured.setdefault(key, []).append(measured)

    def measure(self, candidate: Candidate, scenario: Scenario) -> Measured:
        """One measurement. Raises ChildFailed with the engine's reason."""
        if scenario == "beside":
            prefilling = self._spec(candidate, (), "prefill")
            decoding = self._spec(candidate, (max(BRANCHES),), "decode")
            answers = self._run(prefilling, decoding)
            return Measured(beside_s=sum(answer["seconds"] for answer in answers))
        branches = (CROWD,) if scenario == "crowd" else BRANCHES
        [answer] = self._run(self._spec(candidate, branches, "decode" if scenario == "crowd" else "both"))
        decode_tps = {int(count): tps for count, tps in answer["decode_tps"].items()}
        return Measured(prefill_tps=answer["prefill_tps"], decode_tps=decode_tps)

    def _spec(self, candidate: Candidate, branches: tuple[int, ...], part: Part) -> dict[str, Any]:
        from swarmkv.workers.opening import engine_config

        settings = self.settings.model_copy(update=dict(candidate.changes))
        config = engine_config("all", self.path, settings)
        cells = self.work.document_tokens + config.slots * (_BRANCH_TOKENS + self.work.answer_tokens)
        config = dataclasses.replace(config, n_ctx=cells + _SPARE_CELLS, residents=_RESIDENTS)
        return {
            "config": dataclasses.asdict(config),
            "omp_spin_count": settings.omp_spin_count,
            "document_tokens": self.work.document_tokens,
            "answer_tokens": self.work.answer_tokens,
            "branches": branches,
            "part": part,
        }

    def _run(self, *specs: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers of children that are let off together, once all are ready."""
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child(_MODULE, (json.dumps(spec),), env=self.env)) for spec in specs]
            for child in children:
                if (line := child.read_line()) != _READY:
                    raise ChildFailed(f"It said {line!r} instead of {_READY!r}.")
            for child in children:
                child.write_line("go")
            return [json.loads(child.read_line()) for child in children]


def _turns(default: Candidate, candidates: list[Candidate]) -> list[Key]:
    """What a round measures. What is judged beside another worker must not be slow alone either."""
    keys: list[Key] = []
    for scenario in ("alone", "crowd", "beside"):
        own = [one for one in candidates if one.scenario == scenario or (scenario == "alone" and _is_beside(one))]
        keys += [(one, scenario) for one in (default, *own)] if own or scenario == "alone" else []
    return keys


def _shuffled(keys: list[Key], number: int) -> list[Key]:
    """Another order for every round, the same in every `tune`."""
    return random.Random(number).sample(keys, len(keys))  # noqa: S311 - fairness, not secrecy


def _is_beside(candidate: Candidate) -> bool:
    return candidate.scenario == "beside"
