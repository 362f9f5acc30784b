"""A worker process's own answer, without a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmkv.protocol.messages import WorkerInfo
from swarmkv.workers.engine.jobs import EngineConfig
from swarmkv.workers.engine.null import NullEngine
from swarmkv.workers.metrics import own_metrics


@dataclass(frozen=True)
class StillWorker:
    """What the answer asks of a worker."""

    info: WorkerInfo
    num_held: int = 2
    beat_age_s: float | None = field(default=0.5)


def still_worker(role: str = "branch", **changes: object) -> StillWorker:
    fields = {"id": f"{role}-h-1-ab", "role": role, "model": "default", "pid": 1, "host": "h", "slots": 8}
    return StillWorker(WorkerInfo.model_validate(fields), **changes)  # type: ignore[arg-type]


def own_answer() -> bytes:
    """What a worker of one role answers."""
    config = EngineConfig(
        model_path="null", n_ctx=4096, n_batch=512, n_ubatch=128, slots=8, residents=2, can_prefill=True, threads=1,
        n_gpu_layers=0, kv_type_k="f16", kv_type_v="f16", flash_attention=False, swa_full=False,
    )  # fmt: skip
    engine = NullEngine(config, emit=lambda events: None)
    try:
        return own_metrics([still_worker()], engine)
    finally:
        engine.close()
