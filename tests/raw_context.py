"""llama.cpp by hand: the plain reference that tests hold the engine against."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.tokens import Vocab


class RawContext:
    """One model, one context, one sequence."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        assert model.ptr is not None
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = n_ctx
        params.n_threads = params.n_threads_batch = 2
        self.ptr: int = llama.llama_init_from_model(model.ptr, params)
        self.vocab = Vocab(model.ptr, space_prefix=model.space_prefix)

    def decode(self, ids: list[int]) -> NDArray[np.float32]:
        """Logits behind the last id, shape (n_vocab,), from an empty cache; a copy."""
        llama.llama_memory_clear(llama.llama_get_memory(self.ptr), True)
        tokens = (llama.llama_token * len(ids))(*ids)
        assert llama.llama_decode(self.ptr, llama.llama_batch_get_one(tokens, len(ids))) == 0
        row = llama.llama_get_logits_ith(self.ptr, -1)
        return np.ctypeslib.as_array(row, (self.vocab.n_tokens,)).copy()

    def overwrite_logits(self, logits: NDArray[np.float32]) -> None:
        """Put other values in place of the last row, for the sampler to find."""
        row = llama.llama_get_logits_ith(self.ptr, -1)
        ctypes.memmove(row, np.ascontiguousarray(logits, np.float32).ctypes.data, logits.size * 4)


@contextmanager
def raw_context(path: Path, n_ctx: int = 512) -> Iterator[RawContext]:
    model = Model(path)
    context = RawContext(model, n_ctx)
    try:
        yield context
    finally:
        llama.llama_free(context.ptr)
        model.close()
