"""Snapshots of documents: each round exports, copies and restores the same bytes, one after another."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.alone import config_for, context_of, feed, loaded
from swarmkv.benchmarks.mappings import Peak, anonymous, copy_s, fresh_file, read_through
from swarmkv.benchmarks.restore.rates import Seconds, case_of
from swarmkv.benchmarks.sizing import MARGIN
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import Tokens


class Snapshots:
    """A prefill context and a branch context over one loaded model; lives in a process of its own."""

    def __init__(self, model_path: Path, settings: Settings, cells: int, store: Path) -> None:
        self._open = ExitStack()
        model = self._open.enter_context(loaded(model_path))
        prefill = config_for("prefill", model_path, settings, cells + MARGIN)
        branch = config_for("branch", model_path, settings, cells + MARGIN)
        self._source = self._open.enter_context(context_of(model, prefill))
        self._target = self._open.enter_context(context_of(model, branch))
        self._flash_attention = prefill.flash_attention
        self._store = store

    def case(self, ids: Tokens, rounds: int) -> dict[str, Any]:
        """A case of the results for one document."""
        started_s = perf_counter()
        feed(self._source, ids)
        prefill_s = perf_counter() - started_s
        size_bytes = self._source.export_size(0)
        times = [self._round(size_bytes, len(ids)) for _ in range(rounds)]
        self._source.remove(0)
        facts = {"model": "the model's own", "flash_attention": self._flash_attention, "prefill_s": prefill_s}
        return case_of(len(ids), size_bytes, times, **facts)

    def _round(self, size_bytes: int, tokens: int) -> Seconds:
        with anonymous(size_bytes) as cells, fresh_file(self._store, size_bytes) as payload:
            with fresh_file(self._store, size_bytes) as other:
                copy_fresh_s = copy_s(cells, other)
            with Peak() as export_peak:
                export_s = export(self._source, payload)
            export_touched_s = export(self._source, payload)
            copy_touched_s = copy_s(payload, cells)
            read_through(payload)
            with Peak() as restore_peak:
                restore_s = restore(self._target, payload, tokens)
        return Seconds(
            export_s=export_s,
            export_touched_s=export_touched_s,
            restore_s=restore_s,
            copy_fresh_s=copy_fresh_s,
            copy_touched_s=copy_touched_s,
            export_extra_bytes=export_peak.grown_bytes - size_bytes,
            restore_extra_bytes=restore_peak.grown_bytes,
        )


def export(context: Context, payload: memoryview) -> float:
    """Seconds to write the state of sequence 0."""
    started_s = perf_counter()
    context.export_into(0, payload)
    return perf_counter() - started_s


def restore(context: Context, payload: memoryview, tokens: int) -> float:
    """Seconds to read it into sequence 0, which is empty before and afterwards."""
    started_s = perf_counter()
    context.restore(0, payload, tokens)
    took_s = perf_counter() - started_s
    context.remove(0)
    return took_s
