"""BF16 weights of a model, made once by llama.cpp's own call and kept in the cache."""

from __future__ import annotations

import os
from pathlib import Path

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.workers.engine.backend import last_error, llama
from swarmkv.workers.models import cache_dir

MOSTLY_BF16 = 32  # LLAMA_FTYPE_MOSTLY_BF16


def bf16_of(path: Path) -> Path:
    """The model in BF16; of a quantised one the values are those of its weights. Raises BenchFailed."""
    target = cache_dir() / "models" / f"{path.stem}-bf16.gguf"
    if target.is_file() and target.stat().st_mtime >= path.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.part")
    params = llama.llama_model_quantize_default_params()
    params.ftype = MOSTLY_BF16
    params.allow_requantize = True
    try:
        if llama.llama_model_quantize(os.fsencode(path), os.fsencode(partial), params):
            raise BenchFailed(f"{path} cannot be turned into BF16: {last_error()}.")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
