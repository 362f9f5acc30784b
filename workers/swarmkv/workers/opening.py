"""Opening the engine that the settings ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine import spinning
from swarmkv.workers.engine.jobs import Emit, Engine, EngineConfig

WorkerRole = Literal["prefill", "branch", "all"]
BRANCH_UBATCH = 128
_FLOAT_TYPES = ("f32", "f16", "bf16")


def engine_config(role: WorkerRole, model_path: Path, settings: Settings) -> EngineConfig:
    """Every value resolved for this machine: nothing is left for llama.cpp to guess.

    On a CPU flash attention off and the sliding-window ring are the fastest; a GPU wants flash attention and
    the full window. A quantised V cache needs flash attention everywhere.
    """
    on_gpu = settings.n_gpu_layers != 0
    needs_flash = on_gpu or settings.kv_type_v not in _FLOAT_TYPES
    has_branches = role != "prefill"
    return EngineConfig(
        model_path=str(model_path),
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        # A quarter of the compute buffer of 512, at the same speed: prompts are short, decode steps have few rows.
        n_ubatch=min(settings.n_ubatch, BRANCH_UBATCH) if role == "branch" else settings.n_ubatch,
        slots=settings.slots if has_branches else 0,
        residents=settings.residents if has_branches else 0,
        can_prefill=role != "branch",
        threads=settings.threads,
        n_gpu_layers=settings.n_gpu_layers,
        kv_type_k=settings.kv_type_k,
        kv_type_v=settings.kv_type_v,
        flash_attention=(
            needs_flash if settings.flash_attention == "default" else settings.flash_attention == "on"
        ),
        swa_full=on_gpu if settings.swa_full is None else settings.swa_full,
    )


def open_engine(config: EngineConfig, settings: Settings, emit: Emit) -> Engine:
    """Load the model and start its thread; blocks. Raises ModelError, ConfigError. The caller closes it."""
    if settings.null_engine:
        from swarmkv.workers.engine.null import NullEngine

        return NullEngine(config, emit)
    spinning.choose(settings.omp_spin_count)
    try:
        from swarmkv.workers.engine.thread import open_engine as open_llama
    except ImportError as exc:
        raise ConfigError(f"The engine cannot be imported ({exc}).", hint="pip install 'swarmkv[worker]'") from exc
    return open_llama(config, emit)
