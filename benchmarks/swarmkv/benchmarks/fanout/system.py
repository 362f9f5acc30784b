"""swarmkv itself: enqueue to last result through Redis and both workers as processes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.installation import Installation, installed
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.benchmarks.texts import Text
from swarmkv.producer import RunReport, Sampling

ROLES = ("prefill", "branch")


class System:
    """The scheme. `warm_up` is a document of full size and one prompt.

    The cells have room for one document, so the document of the case before is no longer resident when it is
    asked again: a ready run restores its snapshot from shared memory.

        cold(document n)  ready(document n - 1)  cold(document n + 1)  ready(document n) ...
    """

    def __init__(
        self,
        ground: Ground,
        model_path: Path,
        sizing: Sizing,
        warm_up: tuple[Text, Text],
        name: str = "swarmkv",
    ) -> None:
        self.name = name
        self._ground = ground
        self._model_path = model_path
        self._settings = sizing.settings(ground.settings)
        self._warm_up = warm_up
        self._known = warm_up[0]
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._installation: Installation | None = None

    def setup(self) -> None:
        """Start broker and workers once, and run one prompt through them."""
        if self._installation is None:
            self._installation = self._runner.run(self._start())

    def run(self, case: Case) -> Outcome:
        return self._runner.run(self._run(case))

    def close(self) -> None:
        self._runner.run(self._open.aclose())
        self._runner.close()
        self._runner = asyncio.Runner()

    async def _start(self) -> Installation:
        arriving = installed(self._ground, self._settings, str(self._model_path), ROLES)
        installation = await self._open.enter_async_context(arriving)
        document, prompt = self._warm_up
        await installation.run(document.text, [prompt.text], greedy(1))
        return installation

    async def _run(self, case: Case) -> Outcome:
        cold = await self._timed(case.document, case.prompts, case.max_tokens)
        if case.is_warm_up:
            return Outcome(cold)
        ready = await self._timed(self._known, case.ready_prompts, case.max_tokens)
        self._known = case.document
        return Outcome(cold, ready)

    async def _timed(self, document: Text, prompts: Any, max_tokens: int) -> Measured:
        assert self._installation is not None
        texts = [prompt.text for prompt in prompts]
        started_s = perf_counter()
        report = await self._installation.run(document.text, texts, greedy(max_tokens))
        return Measured(perf_counter() - started_s, facts_of(report))


def greedy(max_tokens: int) -> Sampling:
    """Answers of exactly that many tokens, the likeliest ones."""
    return Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def facts_of(report: RunReport) -> dict[str, Any]:
    """What the run itself measured."""
    times = [branch.timings_ms for branch in report.branches]
    return {
        "prefill_s": report.prefill_ms / 1000 if report.prefills_run else 0.0,
        "prefills_run": report.prefills_run,
        "restore_ms": [time.restore for time in times if time.restore > 0],
        "activation_ms": [time.first_token for time in times],
        "queue_ms": [time.queue for time in times],
        "tokens_reused": sum(branch.tokens.reused for branch in report.branches),
        "tokens_recomputed": sum(branch.tokens.recomputed for branch in report.branches),
    }
