"""The engine alone, in process: prefill once, export, restore, fork, one batch of prompts, batched decode."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from swarmkv.benchmarks.alone import config_for, context_of, feed, feed_prompts, go_on, loaded
from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome
from swarmkv.benchmarks.mappings import copy_gbps
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import Tokens

GB = 1e9


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds of the steps from a snapshot to all answers."""

    restore_s: float
    fork_s: float
    prompts_s: float
    decode_s: float

    @property
    def wall_s(self) -> float:
        return self.restore_s + self.fork_s + self.prompts_s + self.decode_s


class EngineAlone:
    """A prefill context and a branch context over one loaded model, as two workers would have them."""

    def __init__(self, model_path: Path, settings: Settings, sizing: Sizing) -> None:
        self._open = ExitStack()
        model = self._open.enter_context(loaded(model_path))
        settings = sizing.settings(settings)
        prefill = config_for("prefill", model_path, settings, sizing.prefill_cells)
        branch = config_for("branch", model_path, settings, sizing.branch_cells)
        self._source = self._open.enter_context(context_of(model, prefill))
        self._target = self._open.enter_context(context_of(model, branch))

    def run(self, prefix: Tokens, prompts: list[Tokens], ready: list[Tokens], steps: int) -> Outcome:
        """The prompts from a cold document, then others from its snapshot."""
        started_s = perf_counter()
        feed(self._source, prefix)
        prefilled_s = perf_counter()
        payload = mmap.mmap(-1, self._source.export_size(0))
        with memoryview(payload) as view:
            self._source.export_into(0, view)
            exported_s = perf_counter()
            first = self._answer(view, prefix, prompts, steps)
            again = self._answer(view, prefix, ready, steps)
        self._source.remove(0)
        facts = {
            "prefill_s": prefilled_s - started_s,
            "export_s": exported_s - prefilled_s,
            "payload_bytes": len(payload),
            "memcpy_gbps": copy_gbps(len(payload)),
        }
        return Outcome(
            Measured(exported_s - started_s + first.wall_s, {**facts, **_facts(first, len(payload))}),
            Measured(again.wall_s, {**facts, **_facts(again, len(payload))}),
        )

    def _answer(self, payload: memoryview, prefix: Tokens, prompts: Sequence[Tokens], steps: int) -> Answered:
        context, sequences = self._target, range(len(prompts) + 1)
        started_s = perf_counter()
        context.restore(0, payload, len(prefix))
        restored_s = perf_counter()
        for sequence in sequences[1:]:
            context.fork(0, sequence)
        forked_s = perf_counter()
        tokens = feed_prompts(context, prompts, len(prefix))
        prompted_s = perf_counter()
        go_on(context, tokens, [len(prefix) + len(prompt) for prompt in prompts], steps - 1)
        ended_s = perf_counter()
        for sequence in sequences:
            context.remove(sequence)
        return Answered(restored_s - started_s, forked_s - restored_s, prompted_s - forked_s, ended_s - prompted_s)


class Ideal:
    """The scheme; the engine lives in a process of its own."""

    def __init__(self, model_path: Path, settings: Settings, sizing: Sizing, name: str = "ideal") -> None:
        self.name = name
        self._source = (model_path, settings, sizing)
        self._engine: Remote[EngineAlone] | None = None

    def setup(self) -> None:
        """Load the model and make both contexts, once for all cases."""
        self._engine = self._engine or Remote(EngineAlone, *self._source)

    def run(self, case: Case) -> Outcome:
        assert self._engine is not None
        return self._engine.call(EngineAlone.run, *case.ids(), case.max_tokens)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _facts(answered: Answered, payload_bytes: int) -> dict[str, float]:
    return {**asdict(answered), "restore_gbps": payload_bytes / answered.restore_s / GB}
