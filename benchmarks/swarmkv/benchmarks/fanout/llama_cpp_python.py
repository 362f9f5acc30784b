"""llama-cpp-python as its documentation shows it: one `Llama`, asked in a loop; and with its LlamaRAMCache."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.fanout.case import ALL_UP_TO, Case, Measured, Outcome
from swarmkv.benchmarks.processes import FEW_TURNS, OPENMP_TUNING
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.sizing import Sizing

CACHE_BYTES = 2 << 30  # the default of LlamaRAMCache
UBATCH = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to use a `Llama`."""

    flash_attention: bool
    few_turns: bool = False
    has_cache: bool = False

    @property
    def name(self) -> str:
        spin, cache = " spin=few" if self.few_turns else "", " LlamaRAMCache" if self.has_cache else ""
        return f"llama_cpp_python fa={'on' if self.flash_attention else 'off'}{spin}{cache}"


SETTINGS = (
    *(Setting(flash_attention, few_turns) for flash_attention in (False, True) for few_turns in (False, True)),
    Setting(flash_attention=True, has_cache=True),
)


class Loop:
    """One `Llama` in this process."""

    def __init__(self, model_path: Path, cells: int, setting: Setting) -> None:
        # Nothing above may import the library, which reads this once.
        os.environ.pop(OPENMP_TUNING, None)
        os.environ.update({OPENMP_TUNING: FEW_TURNS} if setting.few_turns else {})
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._llama = llama_cpp.Llama(
            str(model_path),
            n_ctx=cells,
            n_batch=UBATCH,
            n_ubatch=UBATCH,
            n_threads=len(os.sched_getaffinity(0)),
            n_threads_batch=len(os.sched_getaffinity(0)),
            flash_attn=setting.flash_attention,
            swa_full=True,  # with the ring its own prefix match never matches
            verbose=False,
        )
        if setting.has_cache:
            self._llama.set_cache(llama_cpp.LlamaRAMCache(CACHE_BYTES))

    def run(self, prompts: list[list[int]], max_tokens: int) -> Measured:
        """The prompts one after another, greedily. An answer may end early, which only helps this scheme.

        The first one pays for the document; of many, the last ones take as long as the others behind it.
        """
        generated, times_s = 0, list[float]()
        for ids in prompts[:ALL_UP_TO]:
            started_s = perf_counter()
            answer = self._llama.create_completion(ids, max_tokens=max_tokens, temperature=0.0)
            times_s.append(perf_counter() - started_s)
            generated += answer["usage"]["completion_tokens"]
        rest_s = fmean(times_s[1:] or [0.0]) * (len(prompts) - len(times_s))
        return Measured(sum(times_s) + rest_s, {"generated": generated})


class LlamaCppPython:
    """The scheme in one setting; the `Llama` lives in a process of its own."""

    def __init__(self, model_path: Path, sizing: Sizing, setting: Setting) -> None:
        self.name = setting.name
        cells = sizing.document_tokens + sizing.own_tokens + UBATCH
        self._source = (model_path, cells, setting)
        self._loop: Remote[Loop] | None = None

    def setup(self) -> None:
        """Load the model once."""
        self._loop = self._loop or Remote(Loop, *self._source)

    def run(self, case: Case) -> Outcome:
        prefix, prompts, ready = case.ids()
        asked = [[[*prefix.tolist(), *prompt.tolist()] for prompt in side] for side in (prompts, ready)]
        assert self._loop is not None
        cold, warm = (self._loop.call(Loop.run, side, case.max_tokens) for side in asked)
        return Outcome(cold, warm, extrapolated=case.branches > ALL_UP_TO)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
