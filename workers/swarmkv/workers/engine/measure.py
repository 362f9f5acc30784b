"""How fast an engine is with given settings: one measurement in a process of its own.

    python -m swarmkv.workers.engine.measure SPEC    (SPEC and the answer are JSON)

A process of its own, since OpenMP reads its spinning once, and since repacked weights and thread pools of one
candidate must not be there for the next. When all is loaded and warm it says `ready` and waits for a line on
stdin, so that two of them can be let off at the same time.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Literal

import numpy as np

from swarmkv.protocol.errors import EngineError, SwarmkvError
from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine import spinning
from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchJob,
    Engine,
    EngineConfig,
    EngineDied,
    EngineEvent,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillJob,
    Tokens,
)

Part = Literal["prefill", "decode", "both"]
PROMPT = "What does the text above say about it?"
READY = "ready"
_WARM_TOKENS = 64
_TEXT = "The answer to the question is in the document, and the document is about the claims of a licence."


@dataclass(frozen=True, slots=True)
class Spec:
    """What to measure. `part`: of which the seconds are asked for; the document is prefilled in any case."""

    config: dict[str, Any]  # the fields of EngineConfig
    omp_spin_count: int
    document_tokens: int
    answer_tokens: int
    branches: tuple[int, ...]
    part: Part = "both"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was measured; seconds from the line on stdin to the end."""

    prefill_tps: float = 0.0
    decode_tps: dict[int, float] = field(default_factory=dict)  # by number of branches, all of them together
    seconds: float = 0.0


class Bench:
    """An open engine with a document prefilled. Owns the engine until `close`."""

    def __init__(self, spec: Spec) -> None:
        """Raises ModelError, EngineError."""
        spinning.choose(spec.omp_spin_count)
        from swarmkv.workers.engine.thread import open_engine  # imports llama_cpp, which reads the environment

        self._events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
        self._spec = spec
        self._engine: Engine = open_engine(EngineConfig(**spec.config), self._events.put)
        self._count = 0
        self._payload = memoryview(b"")
        try:
            self._prompt = self._engine.suffix_tokens(PROMPT, None)
            self._document = self._tokens(spec.document_tokens)
            self._warm()
        except BaseException:
            self.close()
            raise

    def run(self) -> Answer:
        """Measure what the spec asks for."""
        spec = self._spec
        started_s = perf_counter()
        prefill_s = 0.0 if spec.part == "decode" else self._prefill(self._document)
        decode_tps = {} if spec.part == "prefill" else {n: self._decode(n) for n in spec.branches}
        return Answer(
            prefill_tps=len(self._document) / prefill_s if prefill_s else 0.0,
            decode_tps=decode_tps,
            seconds=perf_counter() - started_s,
        )

    def close(self) -> None:
        self._engine.close()

    def _tokens(self, count: int) -> Tokens:
        """A document of exactly `count` tokens: what it says does not change how long it takes."""
        return np.resize(self._engine.suffix_tokens(_TEXT, None), count)

    def _warm(self) -> None:
        """Weights read, threads started, the document's state at hand if it is to be continued."""
        self._prefill(self._document if self._spec.part == "decode" else self._document[:_WARM_TOKENS])
        self._branches(1, tokens=2)

    def _prefill(self, tokens: Tokens) -> float:
        """Seconds; the state is kept for the branches."""
        self._count += 1
        self._engine.prefill(PrefillJob(f"prefill-{self._count}", tokens, self._reserve))
        [ended] = self._endings(1)
        if not isinstance(ended, PrefillExported):
            raise EngineError(f"A prefill ended with {ended!r}.")
        self._prefix_tokens = len(tokens)
        self._payload = self._payload[: ended.size_bytes]
        return ended.prefill_ms / 1_000

    def _reserve(self, size_bytes: int) -> memoryview:
        self._payload = memoryview(bytearray(size_bytes))
        return self._payload

    def _decode(self, branches: int) -> float:
        """Tokens a second of all branches together, from their submission to the last end."""
        started_s = perf_counter()
        generated = self._branches(branches, tokens=self._spec.answer_tokens)
        return generated / (perf_counter() - started_s)

    def _branches(self, count: int, *, tokens: int) -> int:
        sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        for _ in range(count):
            self._count += 1
            job = BranchJob(
                id=f"branch-{self._count}",
                snapshot=f"of {self._prefix_tokens} tokens",
                payload=self._payload,
                prefix_tokens=self._prefix_tokens,
                prompt=self._prompt,
                sampling=sampling,
            )
            self._engine.branch(job)
        return sum(ended.generated for ended in self._endings(count) if isinstance(ended, BranchEnded))

    def _endings(self, count: int) -> list[PrefillExported | BranchEnded]:
        """Wait for so many jobs to end. Raises what went wrong with one of them."""
        endings: list[PrefillExported | BranchEnded] = []
        while len(endings) < count:
            endings += self._ended(self._events.get())
        return endings

    def _ended(self, events: Iterable[EngineEvent]) -> list[PrefillExported | BranchEnded]:
        endings: list[PrefillExported | BranchEnded] = []
        for event in events:
            match event:
                case JobFailed(_, error) | EngineDied(error):
                    raise error
                case JobCancelled(job_id):
                    raise EngineError(f"{job_id} was cancelled.")
                case PrefillExported() | BranchEnded():
                    endings.append(event)
                case _:
                    pass
        return endings


def main() -> int:
    """Exit code 1 with one line on stderr when it cannot be measured."""
    values = json.loads(sys.argv[1])
    spec = Spec(**values | {"branches": tuple(values["branches"])})
    try:
        bench = Bench(spec)
        try:
            _write(READY)
            if not sys.stdin.readline():
                return 1  # whoever asked has gone
            _write(json.dumps(asdict(bench.run())))
        finally:
            bench.close()
    except SwarmkvError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
