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
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmkv.cli.supervise import describe_status
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.settings import MIB, load_settings
from swarmkv.snapshots import SnapshotStore

if TYPE_CHECKING:
    from swarmkv.workers.engine.model import Model

_MODULE = "swarmkv.cli.probe"
_TIMEOUT_S = 120.0
_TOKENS, _N_CTX = 32, 256  # enough rows for the kernels of a prefill


class ProbeFailed(SwarmkvError):
    """The other process gave no answer."""

    code = "probe_failed"


def ask(question: str, *arguments: str) -> dict[str, Any]:
    """The answer of a fresh process; raises ProbeFailed with what it said, or how it died."""
    argv = [sys.executable, "-P", "-m", _MODULE, question, *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise ProbeFailed(f"No answer within {_TIMEOUT_S:.0f} s.", hint="Try again when less runs here.") from exc
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


def model(ref: str) -> dict[str, Any]:
    """What a model is after a step of it was computed, or why it cannot be used."""
    from swarmkv.workers.engine.model import Model
    from swarmkv.workers.models import resolve_model

    try:
        loaded = Model(resolve_model(ref))
        _compute(loaded)
    except SwarmkvError as exc:
        return {"error": exc.message, "hint": exc.hint}
    return {
        "architecture": loaded.architecture,
        "n_ctx_train": loaded.n_ctx_train,
        "has_chat_template": loaded.chat_template is not None,
    }


def _compute(model: Model) -> None:
    """Decode a few tokens: a build of llama.cpp for another CPU loads every model, and dies here."""
    import numpy as np

    from swarmkv.workers.engine.batch import Batch
    from swarmkv.workers.engine.context import Context
    from swarmkv.workers.opening import engine_config

    small = load_settings().model_copy(
        update={"n_ctx": _N_CTX, "n_batch": _TOKENS, "n_ubatch": _TOKENS, "slots": 1}
    )
    with closing(Context(model, engine_config("branch", model.path, small))) as context:
        batch = Batch(_TOKENS)
        batch.add(np.zeros(_TOKENS, np.int32), 0, 0, wants_logits=True)
        context.decode(batch)


def store(directory: str, handshake: str) -> dict[str, Any]:
    """Whether this process sees the store that gave the handshake."""
    return {"sees": SnapshotStore(Path(directory), MIB).sees(handshake)}


if __name__ == "__main__":
    _ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {"engine": engine, "model": model, "store": store}
    sys.stdout.write(json.dumps(_ANSWERS[sys.argv[1]](*sys.argv[2:])))
