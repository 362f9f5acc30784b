"""Snapshots of gigabytes: filled, exported, copied and restored by a process each, so that only two sizes are held.

sequence 1  ├ 256 ┤ removed   ├ 256 ┤ removed      decoded at consecutive positions, each sees only itself
sequence 0  ├ 256 ┼ 256 ┼ 256 ┼ 256 ┼ ...          takes every one of them over: one long prefix
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swarmkv.benchmarks.alone import config_for, context_of, feed, loaded
from swarmkv.benchmarks.environment import free_memory_bytes
from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.mappings import GB, Peak, anonymous, copy_s, fresh_file, mapped, read_through, touch
from swarmkv.benchmarks.remote import Remote
from swarmkv.benchmarks.restore.documents import export, restore
from swarmkv.benchmarks.restore.rates import Seconds, case_of
from swarmkv.benchmarks.restore.wide_model import BYTES_PER_TOKEN
from swarmkv.benchmarks.sizing import MARGIN
from swarmkv.protocol.settings import Settings

PIECE = 256  # tokens that are decoded together
NEEDED = 2.3  # cells and the snapshot at the same time, and a reserve
_TOKEN = 65


@dataclass(frozen=True, slots=True)
class Exported:
    """What the exporting process found."""

    size_bytes: int
    export_s: list[float]
    touched_s: list[float]
    extra_bytes: int


class Cells:
    """A context for a prefix of that many tokens; lives in a process of its own."""

    def __init__(self, model_path: Path, settings: Settings, tokens: int) -> None:
        # With flash attention, masked cells are skipped: pieces that see only themselves are quick to decode.
        settings = settings.model_copy(update={"flash_attention": "on", "kv_type_k": "f16", "kv_type_v": "f16"})
        config = config_for("branch", model_path, settings, tokens + PIECE + MARGIN)
        config = replace(config, slots=1, residents=1, n_batch=PIECE, n_ubatch=PIECE)
        self._open = ExitStack()
        self._context = self._open.enter_context(context_of(self._open.enter_context(loaded(model_path)), config))
        self._tokens = tokens

    def export(self, path: Path, rounds: int) -> Exported:
        """Fill the cells, and write their state to a new file, again and again."""
        self._fill()
        size_bytes = self._context.export_size(0)
        export_s, touched_s, extra_bytes = [], [], 0
        for _ in range(rounds):
            path.unlink(missing_ok=True)
            with path.open("xb+") as file:
                file.truncate(size_bytes)
                with mapped(file.fileno(), size_bytes) as payload:
                    with Peak() as peak:
                        export_s.append(export(self._context, payload))
                    touched_s.append(export(self._context, payload))
            extra_bytes = max(extra_bytes, peak.grown_bytes - size_bytes)
        return Exported(size_bytes, export_s, touched_s, extra_bytes)

    def restore(self, path: Path, rounds: int) -> tuple[list[float], int]:
        """Seconds of each restore from the file, and by how much this process grew at most."""
        with path.open("rb") as file, mapped(file.fileno(), path.stat().st_size, read_only=True) as payload:
            read_through(payload)
            with Peak() as peak:
                times = [restore(self._context, payload, self._tokens) for _ in range(rounds)]
        return times, peak.grown_bytes

    def _fill(self) -> None:
        piece = np.full(PIECE, _TOKEN, np.int32)
        for position in range(0, self._tokens, PIECE):
            feed(self._context, piece[: self._tokens - position], position, 1)
            self._context.fork(1, 0)
            self._context.remove(1)


class Copier:
    """Copies the file's bytes; lives in a process of its own."""

    def copy(self, path: Path, rounds: int) -> tuple[list[float], list[float]]:
        """Seconds into fresh mappings, and into memory whose pages are there."""
        size_bytes = path.stat().st_size
        fresh_s, touched_s = [], []
        with path.open("rb") as file, mapped(file.fileno(), size_bytes, read_only=True) as source:
            read_through(source)
            for _ in range(rounds):
                with fresh_file(path.parent, size_bytes) as target:
                    fresh_s.append(copy_s(source, target))
                with anonymous(size_bytes) as target:
                    touch(target)
                    touched_s.append(copy_s(source, target))
        return fresh_s, touched_s


def wide_case(model_path: Path, settings: Settings, store: Path, size_gb: float, rounds: int) -> dict[str, Any]:
    """A case of the results for one size. Raises BenchFailed when memory is too short for it."""
    tokens = max(PIECE, int(size_gb * GB / BYTES_PER_TOKEN) // PIECE * PIECE)
    needed = int(tokens * BYTES_PER_TOKEN * NEEDED)
    if (free := free_memory_bytes()) < needed:
        raise BenchFailed(
            f"A snapshot of {size_gb:g} GB needs {needed / GB:.1f} GB of memory; {free / GB:.1f} are free.",
            hint="Give smaller ones with --wide-gb, or none with --wide-gb 0.",
        )
    path = store / "wide.snapshot"
    try:
        exported = _in_cells(model_path, settings, tokens, Cells.export, path, rounds)
        fresh_s, touched_s = _copies(path, rounds)
        restore_s, restore_extra = _in_cells(model_path, settings, tokens, Cells.restore, path, rounds)
    finally:
        path.unlink(missing_ok=True)
    columns = (exported.export_s, exported.touched_s, restore_s, fresh_s, touched_s)
    times = [Seconds(*row, exported.extra_bytes, restore_extra) for row in zip(*columns, strict=True)]
    facts = {"model": "wide KV", "flash_attention": True, "prefill_s": None}
    return case_of(tokens, exported.size_bytes, times, **facts)


def _in_cells(model_path: Path, settings: Settings, tokens: int, method: Any, path: Path, rounds: int) -> Any:
    cells = Remote(Cells, model_path, settings, tokens)
    try:
        return cells.call(method, path, rounds)
    finally:
        cells.close()


def _copies(path: Path, rounds: int) -> tuple[list[float], list[float]]:
    copier = Remote(Copier)
    try:
        return copier.call(Copier.copy, path, rounds)
    finally:
        copier.close()
