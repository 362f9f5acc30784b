"""Running targets: broken inputs by the thousand; what a reader answers in a new way is broken further."""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import Target

CORPUS = Path(__file__).with_name("corpus")
MAX_POOL = 400  # inputs of one target that are mutated further
MAX_KEPT_BYTES = 160
MAX_KEPT = 24
_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d[\d,]*|b?'[^']*'|\([^)]*\)")


@dataclass
class Crash:
    """An input that its reader neither took nor refused as it should."""

    target: str
    data: bytes
    error: BaseException


@dataclass
class Campaign:
    """What was tried and found."""

    executions: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    crashes: list[Crash] = field(default_factory=list)
    pools: dict[str, list[bytes]] = field(default_factory=dict)
    slowest_ms: float = 0.0
    _answers: set[tuple[str, str]] = field(default_factory=set)

    def start(self, target: Target) -> None:
        """Its valid inputs, then what earlier campaigns kept."""
        self.pools[target.name] = list(target.seeds)
        for data in [*target.seeds, *kept(target.name)]:
            self.execute(target, data)

    def step(self, target: Target, random: Random) -> None:
        """One broken input."""
        self.execute(target, mutated(self.pools[target.name], random))

    def execute(self, target: Target, data: bytes) -> None:
        started = time.perf_counter()
        try:
            target.read(data)
            answer = "taken"
            self.taken[target.name] += 1
        except target.refusals as exc:
            answer = _VARIABLE.sub("#", str(exc))[:120]
        except Exception as exc:
            answer = repr(type(exc))
            if (target.name, answer) not in self._answers:
                self.crashes.append(Crash(target.name, data, exc))
        self.executions[target.name] += 1
        self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - started) * 1000)
        pool = self.pools[target.name]
        if (target.name, answer) not in self._answers and len(pool) < MAX_POOL:
            self._answers.add((target.name, answer))
            pool.append(data)


def kept(name: str) -> list[bytes]:
    """The inputs of a target that are kept in the repository: a file for each target, an input on each line."""
    path = CORPUS / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
