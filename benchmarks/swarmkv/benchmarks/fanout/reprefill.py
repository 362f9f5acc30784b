"""Agents one after another, each in a fresh context with the whole document: what sharing is compared with."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from swarmkv.benchmarks.alone import config_for, context_of, feed, go_on
from swarmkv.benchmarks.fanout.case import ALL_UP_TO, Case, Measured, Outcome
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.sizing import MARGIN
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import Tokens
from swarmkv.workers.engine.model import Model

SAMPLED = 3  # of more agents than are all run, so many are, and the rest is extrapolated


class Agents:
    """Agents on one loaded model."""

    def __init__(self, model_path: Path, settings: Settings) -> None:
        self._model = Model(model_path)
        self._settings = settings

    def answer(self, ids: Tokens, max_tokens: int) -> tuple[float, float]:
        """Seconds of one agent: to its first token, and in all."""
        started_s = perf_counter()
        # As many cells as it needs, or making the context would cost more than its answer.
        config = config_for("prefill", self._model.path, self._settings, len(ids) + max_tokens + MARGIN)
        with context_of(self._model, config) as context:
            token = feed(context, ids)
            first_s = perf_counter() - started_s
            go_on(context, token, [len(ids)], max_tokens - 1, first=0)
        return first_s, perf_counter() - started_s


class Reprefill:
    """The scheme; its agents live in a process of their own."""

    name = "reprefill"

    def __init__(self, model_path: Path, settings: Settings) -> None:
        self._source = (model_path, settings)
        self._agents: Remote[Agents] | None = None

    def setup(self) -> None:
        """Load the model once."""
        self._agents = self._agents or Remote(Agents, *self._source)

    def run(self, case: Case) -> Outcome:
        """Every agent up to eight; of more, three, and the rest as long as they took on average."""
        assert self._agents is not None
        count = case.branches if case.branches <= ALL_UP_TO else SAMPLED
        prefix, prompts, _ = case.ids()
        times = [
            self._agents.call(Agents.answer, np.concatenate([prefix, prompt]), case.max_tokens)
            for prompt in prompts[:count]
        ]
        wall_s = sum(total_s for _, total_s in times) * case.branches / count
        facts = {"first_token_ms": [first_s * 1000 for first_s, _ in times], "agents_run": count}
        return Outcome(Measured(wall_s, facts), extrapolated=count < case.branches)

    def close(self) -> None:
        if self._agents is not None:
            self._agents.close()
