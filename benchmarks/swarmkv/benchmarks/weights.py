"""BF16 weights of a model, made once and kept in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.workers.models import cache_dir

_QUANTISER = "swarmkv.workers.engine.quantize"


def bf16_of(path: Path) -> Path:
    """The model in BF16; of a quantised one the values are those of its weights. Raises BenchFailed."""
    target = cache_dir() / "models" / f"{path.stem}-bf16.gguf"
    if target.is_file() and target.stat().st_mtime >= path.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.part")
    argv = [sys.executable, "-P", "-m", _QUANTISER, str(path), str(partial), "bf16", "0"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchFailed(f"{path} cannot be turned into BF16: {done.stderr.strip()}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
