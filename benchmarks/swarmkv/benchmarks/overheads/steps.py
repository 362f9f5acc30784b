"""Python's share of a decode step: the real engine, with a clock around what llama.cpp does."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.sizing import MARGIN
from swarmkv.protocol.messages import Sampling
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchJob,
    EngineConfig,
    EngineEvent,
    JobFailed,
    PrefillExported,
    PrefillJob,
    Tokens,
)
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.samplers import Sampler
from swarmkv.workers.engine.thread import open_engine
from swarmkv.workers.opening import engine_config

MAX_EXPORT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Decode:
    """One llama_decode: when it began, what it took, and for how many rows."""

    started_s: float
    took_s: float
    rows: int


class _TimedContext(Context):
    """A context that notes each decode."""

    decodes: list[_Decode]

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.decodes = []
        super().__init__(model, config)

    def decode(self, batch: Batch) -> None:
        started_s = perf_counter()
        super().decode(batch)
        self.decodes.append(_Decode(started_s, perf_counter() - started_s, batch.count))


class StepTimes:
    """An engine with both roles, and one document's snapshot; `close` frees it."""

    def __init__(
        self, model_path: Path, settings: Settings, prefix: Tokens, prompts: list[Tokens], max_tokens: int
    ) -> None:
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._prefix_tokens = len(prefix)
        self._events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
        self._contexts: list[_TimedContext] = []
        own = max(len(prompt) for prompt in prompts) + max_tokens
        n_ctx = 2 * len(prefix) + len(prompts) * own + MARGIN
        config = replace(engine_config("all", model_path, settings), n_ctx=n_ctx, slots=len(prompts))
        self._engine = open_engine(config, self._events.put, make_context=self._context)
        self._payload = self._prefilled(prefix)

    def shares(self, temperature: float, rounds: int) -> dict[str, float]:
        """Medians over all full steps: milliseconds of a step, of its decode and its sampling, Python's share."""
        steps: list[tuple[float, float, float]] = []
        for number in range(rounds):
            steps += self._round(f"{temperature} {number}", temperature)
        step_ms, decode_ms, sampling_ms = (median(column) * 1000 for column in zip(*steps, strict=True))
        python = median((step - decode - sampling) / step for step, decode, sampling in steps)
        return {"step_ms": step_ms, "decode_ms": decode_ms, "sampling_ms": sampling_ms, "python_share": python}

    def close(self) -> None:
        self._engine.close()

    def _context(self, model: Model, config: EngineConfig) -> Context:
        self._contexts.append(_TimedContext(model, config))
        return self._contexts[-1]

    def _prefilled(self, prefix: Tokens) -> memoryview:
        target = bytearray(MAX_EXPORT_BYTES)
        self._engine.prefill(PrefillJob("document", prefix, lambda size_bytes: memoryview(target)[:size_bytes]))
        [exported] = self._ended(1)
        assert isinstance(exported, PrefillExported)
        return memoryview(bytes(target[: exported.size_bytes]))

    def _round(self, name: str, temperature: float) -> list[tuple[float, float, float]]:
        """Seconds of the steps in which all branches answered: in all, of llama_decode, of llama.cpp's sampling."""
        decodes = self._contexts[0].decodes
        decodes.clear()
        sampling = Sampling(temperature=temperature, max_tokens=self._max_tokens, ignore_eos=True, seed=1)
        with _timed(Sampler, "sample") as sampled:
            for index, prompt in enumerate(self._prompts):
                id_ = f"{name} {index}"
                self._engine.branch(
                    BranchJob(id_, "document", self._payload, self._prefix_tokens, prompt, sampling)
                )
            self._ended(len(self._prompts))
        full = [pair for pair in pairwise(decodes) if _is_full(pair, len(self._prompts))]
        return [(after.started_s - one.started_s, one.took_s, _within(sampled, one, after)) for one, after in full]

    def _ended(self, count: int) -> list[EngineEvent]:
        """The endings of that many jobs. Raises BenchFailed when one failed."""
        endings: list[EngineEvent] = []
        while len(endings) < count:
            for event in self._events.get():
                if isinstance(event, JobFailed):
                    raise BenchFailed(f"A job of the engine failed: {event.error}")
                if isinstance(event, BranchEnded | PrefillExported):
                    endings.append(event)
        return endings


def _is_full(pair: tuple[_Decode, _Decode], branches: int) -> bool:
    return all(decode.rows == branches for decode in pair)


def _within(calls: list[tuple[float, float]], one: _Decode, after: _Decode) -> float:
    """Seconds of the calls between two decodes."""
    return sum(took_s for at_s, took_s in calls if one.started_s <= at_s < after.started_s)


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[list[tuple[float, float]]]:
    """When each call of a method began and what it took, in seconds."""
    calls: list[tuple[float, float]] = []
    method: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any) -> Any:
        started_s = perf_counter()
        answer = method(*args)
        calls.append((started_s, perf_counter() - started_s))
        return answer

    setattr(owner, name, timed)
    try:
        yield calls
    finally:
        setattr(owner, name, method)
