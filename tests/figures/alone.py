"""The same work without any queue, each in a process of its own: the engine alone, and agents that prefill anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from swarmkv.benchmarks.alone import context_of, feed, feed_prompts, go_on, loaded
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.backend import collect_log
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import EngineConfig, Tokens
from swarmkv.workers.engine.model import Model
from swarmkv.workers.opening import WorkerRole, engine_config

MIB = 1024 * 1024


@dataclass(frozen=True)
class AloneTimes:
    """Seconds of each step; `decode_s` is all answers' tokens in one batch."""

    prefill_s: float
    export_s: float
    restore_s: float
    fork_s: float
    prompts_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        return float(sum(astuple(self)))


def worker_config(role: WorkerRole, model_path: Path) -> EngineConfig:
    """The engine settings of a worker with default settings."""
    return engine_config(role, model_path, Settings(_env_file=None))


def agents_anew(model_path: Path, prefix: Tokens, prompts: Sequence[Tokens], answer_tokens: int) -> list[float]:
    """Seconds of each agent: a fresh context, the whole list of ids, an answer; the model is loaded."""
    times = []
    with loaded(model_path) as model:
        for prompt in prompts:
            started_s = perf_counter()
            _answer_anew(model, np.concatenate([prefix, prompt]), answer_tokens)
            times.append(perf_counter() - started_s)
    return times


def engine_alone(model_path: Path, prefix: Tokens, prompts: Sequence[Tokens], answer_tokens: int) -> AloneTimes:
    """Prefill, export, restore, fork, all answers in one batch: nothing but llama.cpp's part."""
    with loaded(model_path) as model:
        prefilling = context_of(model, worker_config("prefill", model_path))
        branching = context_of(model, worker_config("branch", model_path))
        with prefilling as source, branching as target:
            prefill_s, export_s, payload = _prefill(source, prefix)
            restore_s = _restore(target, payload, len(prefix))
            started_s = perf_counter()
            for sequence in range(1, len(prompts) + 1):
                target.fork(0, sequence)
            forked_s = perf_counter()
            tokens = feed_prompts(target, prompts, len(prefix))
            prompts_done_s = perf_counter()
            go_on(target, tokens, [len(prefix) + len(prompt) for prompt in prompts], answer_tokens - 1)
            ended_s = perf_counter()
    return AloneTimes(
        prefill_s,
        export_s,
        restore_s,
        fork_s=forked_s - started_s,
        prompts_s=prompts_done_s - forked_s,
        decode_s=ended_s - prompts_done_s,
    )


def restores(model_path: Path, prefix: Tokens, rounds: int) -> list[tuple[float, float]]:
    """Seconds of a prefill and of a restore of its snapshot, taking turns."""
    times = []
    with loaded(model_path) as model:
        prefilling = context_of(model, worker_config("prefill", model_path))
        branching = context_of(model, worker_config("branch", model_path))
        with prefilling as source, branching as target:
            for _ in range(rounds):
                prefill_s, _, payload = _prefill(source, prefix)
                source.remove(0)
                times.append((prefill_s, _restore(target, payload, len(prefix))))
                target.remove(0)
    return times


def kv_bytes(config: EngineConfig) -> float:
    """Bytes of all KV cells of a context, as llama.cpp states them when it makes one."""
    with loaded(Path(config.model_path)) as model, collect_log() as lines, context_of(model, config):
        sizes = [line.split("KV buffer size =")[1].split()[0] for line in lines if "KV buffer size" in line]
    assert sizes, lines
    return sum(map(float, sizes)) * MIB


def _answer_anew(model: Model, ids: Tokens, answer_tokens: int) -> None:
    # A context for one agent: as many cells as it needs, or making it would cost more than its answer.
    config = worker_config("prefill", model.path)
    with context_of(model, replace(config, n_ctx=len(ids) + answer_tokens)) as context:
        go_on(context, feed(context, ids), [len(ids)], answer_tokens - 1, first=0)


def _prefill(context: Context, prefix: Tokens) -> tuple[float, float, bytearray]:
    """Seconds to decode and to export sequence 0, and its state."""
    started_s = perf_counter()
    feed(context, prefix)
    decoded_s = perf_counter()
    payload = bytearray(context.export_size(0))
    context.export_into(0, memoryview(payload))
    return decoded_s - started_s, perf_counter() - decoded_s, payload


def _restore(context: Context, payload: bytearray, prefix_tokens: int) -> float:
    started_s = perf_counter()
    context.restore(0, memoryview(payload), prefix_tokens)
    return perf_counter() - started_s
