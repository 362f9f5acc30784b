"""The engine without any queue: the steps that every scheme is made of, each timed by its caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import EngineConfig, Tokens
from swarmkv.workers.engine.model import Model
from swarmkv.workers.opening import WorkerRole, engine_config


def config_for(role: WorkerRole, model_path: Path, settings: Settings, n_ctx: int) -> EngineConfig:
    """The engine settings of a worker of that role, with as many cells as a job needs."""
    return replace(engine_config(role, model_path, settings), n_ctx=n_ctx)


@contextmanager
def loaded(path: Path) -> Iterator[Model]:
    """A model that is closed afterwards."""
    model = Model(path)
    try:
        yield model
    finally:
        model.close()


@contextmanager
def context_of(model: Model, config: EngineConfig) -> Iterator[Context]:
    """A context that is closed afterwards."""
    context = Context(model, config)
    try:
        yield context
    finally:
        context.close()


def feed(context: Context, ids: Tokens, position: int = 0, sequence: int = 0) -> list[int]:
    """Decode consecutive ids of one sequence; the likeliest next token."""
    batch = Batch(context.n_batch)
    for start in range(0, len(ids), batch.capacity):
        batch.clear()
        chunk = ids[start : start + batch.capacity]
        batch.add(chunk, position + start, sequence, wants_logits=start + len(chunk) == len(ids))
        context.decode(batch)
    return _likeliest(context, batch)


def feed_prompts(context: Context, prompts: Sequence[Tokens], position: int) -> list[int]:
    """All prompts, prompt n in sequence n + 1, as many in a batch as fit; the likeliest next token of each."""
    batch = Batch(context.n_batch)
    tokens: list[int] = []
    for index, prompt in enumerate(prompts):
        if batch.count + len(prompt) > batch.capacity:
            tokens += _decoded(context, batch)
        batch.add(prompt, position, index + 1, wants_logits=True)
    return tokens + _decoded(context, batch)


def go_on(context: Context, tokens: list[int], positions: Sequence[int], steps: int, first: int = 1) -> None:
    """Greedy steps of all sequences in one batch; sequences from `first` on."""
    batch = Batch(len(tokens))
    for step in range(steps):
        batch.clear()
        for index, token in enumerate(np.array(tokens, np.int32)[:, np.newaxis]):
            batch.add(token, positions[index] + step, first + index, wants_logits=True)
        context.decode(batch)
        tokens = _likeliest(context, batch)


def _decoded(context: Context, batch: Batch) -> list[int]:
    context.decode(batch)
    tokens = _likeliest(context, batch)
    batch.clear()
    return tokens


def _likeliest(context: Context, batch: Batch) -> list[int]:
    tokens: list[int] = context.logits(batch).argmax(axis=1).tolist()
    return tokens
