"""Other weight types of a model, by llama.cpp's own quantiser.

    python -m swarmkv.workers.engine.quantize SOURCE TARGET TYPE THREADS

A process of its own: the call cannot be interrupted, and a model that llama.cpp chokes on may end its process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from swarmkv.protocol.errors import ModelError, SwarmkvError
from swarmkv.workers.engine.backend import last_error, llama, physical_cores
from swarmkv.workers.engine.gguf import read_header
from swarmkv.workers.engine.model import check_file

TYPES = {
    "bf16": llama.LLAMA_FTYPE_MOSTLY_BF16,
    "q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0,
}


def quantize(source: Path, target: Path, kind: str, *, threads: int = 0) -> None:
    """Write `source` (all its parts) with weights of type `kind` as the one file `target`.

    Weights that are quantised already are quantised again: what the first time lost stays lost. Raises ModelError;
    what is at `target` then is no model.
    """
    check_file(source)
    params = llama.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    params.nthread = threads or physical_cores()
    params.allow_requantize = True
    last_error()  # forget older ones
    answer = llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if answer != 0:
        raise ModelError(f"llama.cpp cannot write {source} as {kind}: {last_error()}.")
    read_header(target)


def main() -> int:
    """The outcome as one line on stderr; exit code 1 when there is an error."""
    source, target, kind, threads = sys.argv[1:]
    try:
        quantize(Path(source), Path(target), kind, threads=int(threads))
    except SwarmkvError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
