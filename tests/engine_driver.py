"""An engine to be driven by tests: jobs in, and their events kept by job."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchJob,
    BranchProgressed,
    EngineConfig,
    EngineDied,
    EngineEvent,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillJob,
    Tokens,
)
from swarmkv.workers.engine.thread import LlamaEngine, MakeContext, open_engine

Buffer = bytes | bytearray
Outcome = PrefillExported | BranchEnded | JobFailed | JobCancelled
PATIENCE_S = 60.0


def engine_config(model_path: Path, **changes: Any) -> EngineConfig:
    defaults: dict[str, Any] = {
        "n_ctx": 4096,
        "n_batch": 256,
        "n_ubatch": 64,
        "slots": 8,
        "residents": 3,
        "can_prefill": True,
        "threads": 1,
        "n_gpu_layers": 0,
        "kv_type_k": "f32",
        "kv_type_v": "f32",
        "flash_attention": False,
        "swa_full": False,
    }
    return EngineConfig(model_path=str(model_path), **defaults | changes)


class Driver:
    """Submits jobs and waits for how they end. A job's events are in `events[id]`, in order."""

    def __init__(self, config: EngineConfig, make_context: MakeContext = Context) -> None:
        self._queue: queue.Queue[list[EngineEvent]] = queue.Queue()
        self.emits: list[list[EngineEvent]] = []
        self.events: dict[str, list[EngineEvent]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.engine: LlamaEngine = open_engine(config, self._queue.put, make_context=make_context)

    def prefill(self, tokens: Tokens, name: str = "prefill") -> bytes:
        """The exported state of `tokens`."""
        buffers: list[bytearray] = []
        self.start_prefill(tokens, name, buffers)
        outcome = self.outcome(name)
        assert isinstance(outcome, PrefillExported), outcome
        return bytes(buffers[0])

    def start_prefill(self, tokens: Tokens, name: str, buffers: list[bytearray]) -> None:
        def reserve(size_bytes: int) -> memoryview:
            buffers.append(bytearray(size_bytes))
            return memoryview(buffers[0])

        self.engine.prefill(PrefillJob(name, tokens, reserve))

    def start(
        self,
        name: str,
        payload: Buffer,
        prefix_tokens: int,
        prompt: Tokens,
        *,
        snapshot: str = "snapshot",
        max_tokens: int = 8,
        solo: bool = False,
        **sampling: Any,
    ) -> None:
        """Submit a branch, greedy and without an end of its own unless told otherwise."""
        settings = {"temperature": 0.0, "ignore_eos": True} | sampling
        job = BranchJob(
            id=name,
            snapshot=snapshot,
            payload=memoryview(payload),
            prefix_tokens=prefix_tokens,
            prompt=prompt,
            sampling=Sampling(max_tokens=max_tokens, **settings),
            solo=solo,
        )
        self.engine.branch(job)

    def answer(self, name: str, payload: Buffer, prefix_tokens: int, prompt: Tokens, **options: Any) -> str:
        """Run one branch to its end; its text."""
        self.start(name, payload, prefix_tokens, prompt, **options)
        return self.text(name)

    def text(self, name: str) -> str:
        """The answer of a branch, once it ended well; what was streamed must say the same."""
        outcome = self.outcome(name)
        assert isinstance(outcome, BranchEnded), outcome
        streamed = (event.text for event in self.events[name] if isinstance(event, BranchProgressed))
        assert "".join(streamed) == outcome.text
        return outcome.text

    def failure(self, name: str) -> Exception:
        outcome = self.outcome(name)
        assert isinstance(outcome, JobFailed), outcome
        return outcome.error

    def outcome(self, name: str) -> Outcome:
        """How a job ended; waits for it. A dead engine raises its error."""
        self.pump_until(lambda: name in self.outcomes)
        return self.outcomes[name]

    def pump_until(self, condition: Any) -> None:
        """Take events until `condition()` holds."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            self._take(self._queue.get(timeout=max(0.001, end_s - time.monotonic())))

    def pump(self) -> None:
        """Take what is there."""
        while not self._queue.empty():
            self._take(self._queue.get())

    def _take(self, emitted: list[EngineEvent]) -> None:
        self.emits.append(emitted)
        for event in emitted:
            if isinstance(event, EngineDied):
                raise event.error
            self.events.setdefault(event.id, []).append(event)
            if isinstance(event, Outcome):
                assert event.id not in self.outcomes, f"{event.id} ended twice"
                self.outcomes[event.id] = event


@contextmanager
def driven(model_path: Path, make_context: MakeContext = Context, **changes: Any) -> Iterator[Driver]:
    """A driver over a new engine, closed at the end."""
    driver = Driver(engine_config(model_path, **changes), make_context)
    try:
        yield driver
    finally:
        driver.engine.close()


def random_tokens(count: int, seed: int) -> Tokens:
    """Byte tokens of the tiny vocabularies, shape (count,)."""
    return np.random.default_rng(seed).integers(3, 259, count, dtype=np.int32)


def ids_of(emitted: list[EngineEvent]) -> frozenset[str]:
    """The jobs that an emit speaks of."""
    return frozenset(event.id for event in emitted if not isinstance(event, EngineDied))
