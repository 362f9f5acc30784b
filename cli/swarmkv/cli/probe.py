"""What `swarmkv doctor` asks of another process.

    python -m swarmkv.cli.probe QUESTION ARGUMENT...    (the answer is JSON on stdout)

Another process, since llama.cpp may kill it (a build for another CPU ends by SIGILL at its first step), and
since only another process can say whether it sees the same shared memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarmkv.cli.supervise import describe_status
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.settings import MIB
from swarmkv.snapshots import SnapshotStore

_TIMEOUT_S = 120.0


class ProbeFailed(SwarmkvError):
    """The other process gave no answer."""

    code = "probe_failed"


def ask(question: str, *arguments: str) -> dict[str, Any]:
    """The answer of a fresh process; raises ProbeFailed with what it said, or how it died."""
    argv = [sys.executable, "-P", "-m", "swarmkv.cli.probe", question, *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise ProbeFailed(f"No answer within {_TIMEOUT_S:.0f} s.") from exc
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise ProbeFailed(f"{describe_status(done.returncode)}: {last}".rstrip(": ") + ".")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def engine() -> dict[str, Any]:
    """The build of llama.cpp, and the instruction sets that it uses."""
    from swarmkv.workers.engine.backend import BUILD, cpu_features, has_gpu, physical_cores

    return {
        "build": BUILD,
        "features": cpu_features(),
        "gpu": has_gpu(),
        "cores": physical_cores(),
    }


def model(path: str) -> dict[str, Any]:
    """What a GGUF is, or why it cannot be used."""
    from swarmkv.workers.engine.model import Model

    try:
        loaded = Model(path)
    except SwarmkvError as exc:
        return {"error": exc.message, "hint": exc.hint}
    return {
        "architecture": loaded.architecture,
        "n_ctx_train": loaded.n_ctx_train,
        "has_chat_template": loaded.chat_template is not None,
    }


def store(directory: str, handshake: str) -> dict[str, Any]:
    """Whether this process sees the store that gave the handshake."""
    return {"sees": SnapshotStore(Path(directory), MIB).sees(handshake)}


if __name__ == "__main__":
    _ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {"engine": engine, "model": model, "store": store}
    sys.stdout.write(json.dumps(_ANSWERS[sys.argv[1]](*sys.argv[2:])))
