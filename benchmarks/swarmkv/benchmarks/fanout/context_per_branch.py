"""The original SwarmKV scheme: a context of its own for every branch, filled by copy and restore, one by one."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from swarmkv.benchmarks.alone import config_for, context_of, feed, go_on
from swarmkv.benchmarks.fanout.case import ALL_UP_TO, Case, Measured, Outcome
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.sizing import MARGIN, Sizing
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import EngineConfig, Tokens
from swarmkv.workers.engine.model import Model


class Branches:
    """A loaded model and a context for prefills; branches make theirs."""

    def __init__(self, model_path: Path, settings: Settings, sizing: Sizing) -> None:
        self._model = Model(model_path)
        self._settings = settings
        self._cells = sizing.document_tokens + sizing.own_tokens + MARGIN

    def run(self, prefix: Tokens, prompts: list[Tokens], ready: list[Tokens], max_tokens: int) -> Outcome:
        """Prefill and branches, then other branches from the same state; beyond ALL_UP_TO as long as the others."""
        started_s = perf_counter()
        with context_of(self._model, self._config()) as source:
            feed(source, prefix)
            state = bytearray(source.export_size(0))
            source.export_into(0, memoryview(state))
        prefilled_s = perf_counter() - started_s
        share = len(prompts) / min(len(prompts), ALL_UP_TO)
        first = [self._branch(state, prefix, prompt, max_tokens) for prompt in prompts[:ALL_UP_TO]]
        cold_s = prefilled_s + (perf_counter() - started_s - prefilled_s) * share
        started_s = perf_counter()
        again = [self._branch(state, prefix, prompt, max_tokens) for prompt in ready[:ALL_UP_TO]]
        ready_s = (perf_counter() - started_s) * share
        return Outcome(
            Measured(cold_s, {"first_token_ms": first}),
            Measured(ready_s, {"first_token_ms": again}),
            extrapolated=share > 1,
        )

    def _branch(self, state: bytearray, prefix: Tokens, prompt: Tokens, max_tokens: int) -> float:
        """Milliseconds to the first token of a branch, which is run to its end."""
        started_s = perf_counter()
        with context_of(self._model, self._config()) as context:
            context.restore(0, memoryview(bytes(state)), len(prefix))
            token = feed(context, prompt, len(prefix))
            first_s = perf_counter() - started_s
            go_on(context, token, [len(prefix) + len(prompt)], max_tokens - 1, first=0)
        return first_s * 1000

    def _config(self) -> EngineConfig:
        return config_for("prefill", self._model.path, self._settings, self._cells)


class ContextPerBranch:
    """The scheme; model and contexts live in a process of their own."""

    name = "context_per_branch"

    def __init__(self, model_path: Path, settings: Settings, sizing: Sizing) -> None:
        self._source = (model_path, settings, sizing)
        self._branches: Remote[Branches] | None = None

    def setup(self) -> None:
        """Load the model once."""
        self._branches = self._branches or Remote(Branches, *self._source)

    def run(self, case: Case) -> Outcome:
        assert self._branches is not None
        return self._branches.call(Branches.run, *case.ids(), case.max_tokens)

    def close(self) -> None:
        if self._branches is not None:
            self._branches.close()
