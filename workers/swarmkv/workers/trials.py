"""What `swarmkv tune` tries, and what counts as faster. Plain data: nothing is measured here.

One setting at a time is changed from the default, and each candidate is compared with the default of the same
round, since a machine is not as fast now as it was a minute ago:

    round 1   default  candidate  candidate  default again ...    (in another order each round)
    round 2   candidate  default  default again  candidate ...    gain of one: seconds of default / candidate - 1

A candidate is taken when it gains over 3 % in three rounds of four (in all of three, in four of five), beyond what
the default seems to gain over itself: that is noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from swarmkv.protocol.settings import MAX_SEQUENCES, Settings

Scenario = Literal["alone", "crowd", "beside"]
NEEDED_GAIN = 0.03
BRANCHES = (1, 8, 16)
_REFERENCE_DOCUMENT, _REFERENCE_BRANCHES, _REFERENCE_ANSWER = 3_500, 16, 32
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, eq=False, slots=True)  # itself is its key: dictionaries cannot be hashed
class Candidate:
    """Settings that differ from the default, by their names in Settings, and under which load they count.

    alone   one worker does both, as fast as it can: a document of 3,500 tokens and 16 answers of 32
    crowd   many more branches than slots
    beside  a prefill worker and a branch worker on the same cores, as `swarmkv up` runs them
    """

    factor: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    scenario: Scenario = "alone"

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={_shown(value)}" for name, value in self.changes.items()) or self.factor


@dataclass(frozen=True, slots=True)
class Base:
    """The default that all is compared with, every value resolved for this machine."""

    flash_attention: bool
    swa_full: bool
    window: int
    cores: int
    logical_cores: int
    threads: int
    n_ubatch: int
    slots: int
    omp_spin_count: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement; what its scenario does not tell is 0 or missing."""

    prefill_tps: float = 0.0
    decode_tps: Mapping[int, float] = field(default_factory=dict)
    beside_s: float = 0.0  # seconds of both workers, added

    def cost_s(self, scenario: Scenario) -> float:
        """Seconds of the reference work; less is better."""
        if scenario == "beside":
            return self.beside_s
        if scenario == "crowd":
            return 1 / max(self.decode_tps.values())
        answers = _REFERENCE_BRANCHES * _REFERENCE_ANSWER
        return _REFERENCE_DOCUMENT / self.prefill_tps + answers / self.decode_tps[_REFERENCE_BRANCHES]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate did; 0.05 is 5 % faster than the default. A quarter of the rounds may be beyond a bound."""

    gain: float  # of the median round
    low: float
    high: float
    noise: float = 0.0  # the largest gain or loss of what is no change at all

    @property
    def is_faster(self) -> bool:
        return self.low > NEEDED_GAIN + self.noise

    @property
    def is_slower(self) -> bool:
        return self.high < -NEEDED_GAIN - self.noise


def candidates(base: Base, settings: Settings, fixed: Collection[str], *, quick: bool) -> list[Candidate]:
    """What is worth trying here; nothing of the settings in `fixed`, which the user made and which win anyway."""
    found = [*_attention(base, settings), *_threads(base), *_ubatch(base, settings, quick=quick)]
    found += [*_slots(base, settings, quick=quick), *_spinning(base, quick=quick)]
    return [one for one in found if not one.changes.keys() & set(fixed)]


def judge(default_s: Sequence[float], candidate_s: Sequence[float], *, noise: float = 0.0) -> Verdict:
    """Compare the seconds of the same rounds, in order."""
    gains = sorted(base / cost - 1 for base, cost in zip(default_s, candidate_s, strict=True))
    outside = len(gains) // 4
    return Verdict(median(gains), gains[outside], gains[-1 - outside], noise)


def best_of_each_factor(verdicts: Mapping[Candidate, Verdict]) -> list[Candidate]:
    """Of every factor the fastest candidate that beats the default."""
    best: dict[str, Candidate] = {}
    for candidate, verdict in verdicts.items():
        current = best.get(candidate.factor)
        if verdict.is_faster and (current is None or verdict.gain > verdicts[current].gain):
            best[candidate.factor] = candidate
    return list(best.values())


def _attention(base: Base, settings: Settings) -> list[Candidate]:
    """Flash attention and the ring together: which of them is better depends on the other."""
    flashes = (False, True) if settings.kv_type_v in _FLOATS else (True,)
    windows = (False, True) if base.window else (base.swa_full,)
    options = [(flash, full) for flash in flashes for full in windows]
    found = []
    for flash, full in options:
        changes: dict[str, Any] = {}
        if flash != base.flash_attention:
            changes["flash_attention"] = "on" if flash else "off"
        if full != base.swa_full:
            changes["swa_full"] = full
        if changes:
            found.append(Candidate("attention", changes))
    return found


def _threads(base: Base) -> list[Candidate]:
    options = {max(1, base.cores // 2), max(1, base.cores - 1), base.cores, base.logical_cores}
    return [Candidate("threads", {"threads": count}) for count in sorted(options - {base.threads})]


def _ubatch(base: Base, settings: Settings, *, quick: bool) -> list[Candidate]:
    options = (256,) if quick else (128, 256, 512, 1_024)
    fitting = (size for size in options if size <= settings.n_batch and size != base.n_ubatch)
    return [Candidate("n_ubatch", {"n_ubatch": size}) for size in fitting]


def _slots(base: Base, settings: Settings, *, quick: bool) -> list[Candidate]:
    options = (32,) if quick else (8, 32, 64)
    most = MAX_SEQUENCES - 1 - settings.residents
    fitting = (count for count in options if count <= most and count != base.slots)
    return [Candidate("slots", {"slots": count}, "crowd") for count in fitting]


def _spinning(base: Base, *, quick: bool) -> list[Candidate]:
    options = (20_000,) if quick else (0, 200, 20_000)
    fitting = (count for count in options if count != base.omp_spin_count)
    return [Candidate("omp_spin_count", {"omp_spin_count": count}, "beside") for count in fitting]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
