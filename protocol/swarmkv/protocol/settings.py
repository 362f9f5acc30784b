"""Every setting, its default stated once, read from SWARMKV_* and `.env` at the entry points only.

An unknown SWARMKV_* variable is refused by name: a misspelt setting must not vanish.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from swarmkv.protocol.errors import ConfigError

PREFIX = "SWARMKV_"
KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
MAX_SEQUENCES = 256  # llama.cpp's LLAMA_MAX_SEQ
MIB = 1024 * 1024
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]


class Settings(BaseSettings):
    """All settings; frozen. Environment names are the field names in capitals behind SWARMKV_."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", frozen=True, extra="ignore", env_ignore_empty=True
    )

    # Redis. Empty: the embedded broker that `swarmkv up` runs on a unix socket.
    redis_url: str = ""
    redis_timeout_s: Seconds = 5.0

    # Snapshot store.
    store_dir: Path = Field(default_factory=lambda: Path(f"/dev/shm/swarmkv-{os.getuid()}"))  # noqa: S108
    store_budget_bytes: Annotated[int, Field(ge=MIB)] = 4096 * MIB

    # Engine. n_ctx counts KV cells: residents, and each slot's prompt and answer.
    n_ctx: Annotated[int, Field(ge=64, le=16_777_216)] = 16_384
    n_batch: Annotated[int, Field(ge=1, le=65_536)] = 2_048
    n_ubatch: Annotated[int, Field(ge=1, le=65_536)] = 512
    slots: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = 16
    residents: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = 4
    threads: Annotated[int, Field(ge=0, le=1024)] = 0  # 0: all physical cores
    n_gpu_layers: Annotated[int, Field(ge=-1)] = 0
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    flash_attention: Literal["on", "off", "default"] = "default"
    swa_full: bool | None = None  # None: the ring on a CPU, full on a GPU
    null_engine: bool = False  # no llama.cpp: made-up tokens, for measuring the queue alone

    # Limits.
    max_document_bytes: Annotated[int, Field(ge=1)] = 16 * MIB
    max_prompt_bytes: Annotated[int, Field(ge=1)] = MIB
    max_branches: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    max_rebuilds: Annotated[int, Field(ge=0)] = 3
    max_solo_crashes: Annotated[int, Field(ge=1)] = 2
    max_events: Annotated[int, Field(ge=100)] = 20_000

    # Times.
    deadline_s: Seconds = 86_400.0
    result_ttl_s: Seconds = 7 * 86_400.0
    lease_s: Seconds = 8.0
    heartbeat_s: Seconds = 2.0
    sweep_s: Seconds = 1.0
    poll_s: Seconds = 1.0
    grace_s: Seconds = 10.0
    flush_s: Seconds = 0.05

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    @property
    def deadline_ms(self) -> int:
        return int(self.deadline_s * 1000)

    @property
    def result_ttl_ms(self) -> int:
        return int(self.result_ttl_s * 1000)


def load_settings(**overrides: Any) -> Settings:
    """Settings of this process: overrides that are not None, then the environment, then `.env`.

    Raises ConfigError naming the variable.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(
                f"The environment variable {name} is no setting of swarmkv.",
                hint="Settings: " + ", ".join(sorted(known)) + ".",
            )
    try:
        settings = Settings(**{key: value for key, value in overrides.items() if value is not None})
    except ValidationError as exc:
        first = exc.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper() if first["loc"] else "settings"
        raise ConfigError(f"{name}={first.get('input')!r}: {first['msg']}.") from exc
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    sequences = settings.slots + settings.residents + 1
    if sequences > MAX_SEQUENCES:
        raise ConfigError(
            f"SWARMKV_SLOTS={settings.slots} and SWARMKV_RESIDENTS={settings.residents} need {sequences} "
            f"sequences; llama.cpp has {MAX_SEQUENCES}.",
            hint=f"Lower them to {MAX_SEQUENCES - 1} together.",
        )
    if settings.heartbeat_s * 2 > settings.lease_s:
        raise ConfigError(
            f"SWARMKV_HEARTBEAT_S={settings.heartbeat_s} is too slow for SWARMKV_LEASE_S={settings.lease_s}.",
            hint="A lease must outlive at least two heartbeats.",
        )
    if settings.n_ubatch > settings.n_batch:
        raise ConfigError(
            f"SWARMKV_N_UBATCH={settings.n_ubatch} is over SWARMKV_N_BATCH={settings.n_batch}.",
            hint="Lower n_ubatch, or raise n_batch.",
        )
    quantised_v = settings.kv_type_v not in ("f32", "f16", "bf16")
    if quantised_v and settings.flash_attention == "off":
        raise ConfigError(
            f"SWARMKV_KV_TYPE_V={settings.kv_type_v} needs flash attention, and SWARMKV_FLASH_ATTENTION=off.",
            hint="Set SWARMKV_FLASH_ATTENTION=on, or SWARMKV_KV_TYPE_V=f16.",
        )
