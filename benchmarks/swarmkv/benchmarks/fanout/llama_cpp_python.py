"""llama-cpp-python as its documentation shows it: one `Llama`, asked in a loop; and with its LlamaRAMCache."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome
from swarmkv.benchmarks.processes import OPENMP_TUNING
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.sizing import Sizing

CACHE_BYTES = 2 << 30  # the default of LlamaRAMCache
UBATCH = 512


class Loop:
    """One `Llama` in this process."""

    def __init__(
        self, model_path: Path, cells: int, flash_attention: bool, swa_full: bool, has_cache: bool
    ) -> None:
        os.environ.pop(OPENMP_TUNING, None)  # it runs alone: OpenMP's own is faster
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._llama = llama_cpp.Llama(
            str(model_path),
            n_ctx=cells,
            n_batch=UBATCH,
            n_ubatch=UBATCH,
            n_threads=len(os.sched_getaffinity(0)),
            n_threads_batch=len(os.sched_getaffinity(0)),
            flash_attn=flash_attention,
            swa_full=swa_full,
            verbose=False,
        )
        if has_cache:
            self._llama.set_cache(llama_cpp.LlamaRAMCache(CACHE_BYTES))

    def run(self, prompts: list[list[int]], max_tokens: int) -> Measured:
        """The prompts one after another, greedily. An answer may end early, which only helps this scheme."""
        generated = 0
        started_s = perf_counter()
        for ids in prompts:
            answer = self._llama.create_completion(ids, max_tokens=max_tokens, temperature=0.0)
            generated += answer["usage"]["completion_tokens"]
        return Measured(perf_counter() - started_s, {"generated": generated})


class LlamaCppPython:
    """The scheme in one setting; the `Llama` lives in a process of its own."""

    # Its own prefix match needs the whole window: with the ring it re-prefills for every prompt.
    SETTINGS: ClassVar = (
        (False, True, False),
        (True, True, False),
        (True, True, True),
    )

    def __init__(
        self, model_path: Path, sizing: Sizing, flash_attention: bool, swa_full: bool, has_cache: bool
    ) -> None:
        flash = "on" if flash_attention else "off"
        self.name = f"llama_cpp_python fa={flash}{' LlamaRAMCache' if has_cache else ''}"
        cells = sizing.document_tokens + sizing.own_tokens + UBATCH
        self._source = (model_path, cells, flash_attention, swa_full, has_cache)
        self._loop: Remote[Loop] | None = None

    def setup(self) -> None:
        """Load the model once."""
        self._loop = self._loop or Remote(Loop, *self._source)

    def run(self, case: Case) -> Outcome:
        prefix, prompts, ready = case.ids()
        asked = [[[*prefix.tolist(), *prompt.tolist()] for prompt in side] for side in (prompts, ready)]
        assert self._loop is not None
        cold, warm = (self._loop.call(Loop.run, side, case.max_tokens) for side in asked)
        return Outcome(cold, warm)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
