"""One llama_batch over our own arrays, filled by slices.

llama.cpp wants a pointer per row to its sequence ids. The ids lie in one array and the pointers are set up
once, so a row's sequence is written like its token:

    tokens      t t t t t t ...    int32
    positions   p p p p p p ...    int32
    sequences   s s s s s s ...    int32  ◀── seq_id[row], fixed
    wanted      0 0 1 0 0 1 ...    int8   1: logits of this row
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmkv.workers.engine.backend import llama


class Batch:
    """Rows for one llama_decode. Owns the memory that `raw` points into; not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.logits_rows: list[int] = []  # row numbers that asked for logits, ascending
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._sequence_counts = np.ones(capacity, np.int32)
        self._sequence_pointers = _row_addresses(self._sequences)
        self._steps = np.arange(capacity, dtype=np.int32)
        self.raw = self._as_llama_batch()

    def clear(self) -> None:
        self._wanted[: self.count] = 0
        self.count = self.raw.n_tokens = 0
        self.logits_rows = []

    def add(self, tokens: NDArray[np.int32], position: int, sequence: int, *, wants_logits: bool) -> None:
        """Append consecutive `tokens` of one sequence; `wants_logits` asks for those of the last one.

        Raises IndexError when they do not fit: llama.cpp would write past the end, or abort.
        """
        start, end = self.count, self.count + len(tokens)
        if end > self.capacity:
            raise IndexError(f"{end} rows do not fit a batch of {self.capacity}.")
        self._tokens[start:end] = tokens
        np.add(self._steps[: end - start], position, out=self._positions[start:end])
        self._sequences[start:end] = sequence
        if wants_logits:
            self._wanted[end - 1] = 1
            self.logits_rows.append(end - 1)
        self.count = self.raw.n_tokens = end

    def _as_llama_batch(self) -> Any:
        arrays: dict[str, NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._sequence_counts,
            "seq_id": self._sequence_pointers,
            "logits": self._wanted,
        }
        types: Any = {name: kind for name, kind, *_ in llama.llama_batch._fields_}
        pointers = {name: ctypes.cast(array.ctypes.data, types[name]) for name, array in arrays.items()}
        return llama.llama_batch(n_tokens=0, embd=None, **pointers)


def _row_addresses(array: NDArray[np.int32]) -> NDArray[np.uintp]:
    rows = np.arange(len(array), dtype=np.uintp)
    return np.uintp(array.ctypes.data) + rows * np.uintp(array.itemsize)
