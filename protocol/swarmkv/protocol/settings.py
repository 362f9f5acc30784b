"""Every setting, its default stated once, read from SWARMKV_* and `.env` at the entry points only.

An unknown SWARMKV_* variable is refused by name: a misspelt setting must not vanish.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from swarmkv.protocol.errors import ConfigError

PREFIX = "SWARMKV_"
DOTENV = ".env"
KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
MAX_SEQUENCES = 256  # llama.cpp's LLAMA_MAX_SEQ
MIB = 1024 * 1024
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]


def _field(default: Any, description: str) -> Any:
    return Field(default=default, description=description)


def _secret(description: str) -> Any:
    return Field(default="", description=description, repr=False)


class Settings(BaseSettings):
    """All settings; frozen. Environment names are the field names in capitals behind SWARMKV_."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=DOTENV, frozen=True, extra="ignore", env_ignore_empty=True
    )

    # Redis
    redis_url: str = _field("", "Redis, rediss:// with TLS; empty: the broker of `swarmkv up`, on a unix socket")
    redis_timeout_s: Seconds = _field(5.0, "longest wait for an answer of Redis")

    # Snapshot store
    store_dir: Path = Field(
        default_factory=lambda: Path(f"/dev/shm/swarmkv-{os.getuid()}"),  # noqa: S108 - made with mode 0700
        description="directory of snapshots; shared by prefill and branch workers",
    )
    store_budget_bytes: Annotated[int, Field(ge=MIB)] = _field(4096 * MIB, "most bytes of snapshots")

    # Engine
    model: str = _field("demo", "the model of workers: [ALIAS=]REF, as --model has it")
    n_ctx: Annotated[int, Field(ge=64, le=16_777_216)] = _field(
        16_384, "KV cells: resident documents, and each slot's prompt and answer"
    )
    n_batch: Annotated[int, Field(ge=1, le=65_536)] = _field(2_048, "most tokens given to llama.cpp at once")
    n_ubatch: Annotated[int, Field(ge=1, le=65_536)] = _field(512, "tokens of one compute pass")
    slots: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = _field(16, "branches that a worker decodes at once")
    residents: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = _field(
        4, "snapshots that a worker keeps in its KV cache"
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = _field(0, "threads of a worker; 0: all physical cores")
    omp_spin_count: Annotated[int, Field(ge=0, le=1_000_000_000)] = _field(
        2_000, "turns that a thread busy-waits, so that workers on the same cores do not fight; 0: OpenMP decides"
    )
    n_gpu_layers: Annotated[int, Field(ge=-1)] = _field(0, "layers on a GPU; -1: all")
    kv_type_k: KvType = _field("f16", "type of the K cache")
    kv_type_v: KvType = _field("f16", "type of the V cache; quantised ones need flash attention")
    flash_attention: Literal["on", "off", "default"] = _field("default", "default: off on a CPU, on on a GPU")
    swa_full: bool | None = _field(None, "keep sliding windows whole; unset: no (a ring) on a CPU, yes on a GPU")
    null_engine: bool = _field(False, "made-up tokens without a model, to measure the queue alone")

    # Limits
    max_document_bytes: Annotated[int, Field(ge=1)] = _field(16 * MIB, "largest document")
    max_prompt_bytes: Annotated[int, Field(ge=1)] = _field(MIB, "largest prompt, system text or template")
    max_branches: Annotated[int, Field(ge=1, le=100_000)] = _field(1_000, "most branches of a run")
    max_rebuilds: Annotated[int, Field(ge=0)] = _field(3, "new snapshots for a branch before it fails")
    max_solo_crashes: Annotated[int, Field(ge=1)] = _field(
        2, "deaths of its worker while alone before a branch fails"
    )
    max_open_branches: Annotated[int, Field(ge=0)] = _field(
        100_000, "most branches of all runs that have not ended; more are refused; 0: no limit"
    )
    max_documents: Annotated[int, Field(ge=0)] = _field(100_000, "most documents that Redis holds; 0: no limit")
    max_documents_bytes: Annotated[int, Field(ge=0)] = _field(
        2048 * MIB, "most bytes of all documents that Redis holds; 0: no limit"
    )
    max_events: Annotated[int, Field(ge=100)] = _field(20_000, "entries kept of a run's stream of events")

    # Logs
    log_format: Literal["text", "json"] = _field(
        "text", "json: a line of JSON for each change of state, for worker, up and monitor"
    )

    # Metrics of a process's own
    metrics_address: str = _field(
        "",
        "HOST:PORT, or a port of 127.0.0.1, for /metrics, /healthz and /readyz of worker and monitor; empty: none",
    )

    # Traces
    otel: Literal["auto", "on", "off"] = _field(
        "auto",
        "OpenTelemetry traces; auto: if OTEL_EXPORTER_OTLP_ENDPOINT is set and swarmkv[otel] installed",
    )

    # Times
    deadline_s: Seconds = _field(86_400.0, "a run ends by then")
    result_ttl_s: Seconds = _field(7 * 86_400.0, "results are kept so long")
    lease_s: Seconds = _field(8.0, "a worker that is silent so long has lost its jobs")
    heartbeat_s: Seconds = _field(2.0, "time between heartbeats")
    sweep_s: Seconds = _field(1.0, "time between sweeps")
    poll_s: Seconds = _field(1.0, "time between looks at the queue when no bell rings")
    grace_s: Seconds = _field(10.0, "time to finish jobs after SIGTERM before they are handed back")
    flush_s: Seconds = _field(0.05, "streamed text is written so often")

    # Monitor
    monitor_host: str = _field("127.0.0.1", "address that the monitor's page listens on; another one needs a token")
    monitor_port: Annotated[int, Field(ge=0, le=65_535)] = _field(8_765, "its port; 0: any that is free")
    monitor_url: str = _field("", "the page's address for people, when it is another, as behind a container's port")
    monitor_token: str = _secret("token of the page's administrators")
    monitor_token_file: Path | None = _field(
        None, "file of that token, made with a new one if it is not there; the token is printed"
    )
    monitor_read_token: str = _secret("token of those who may look and change nothing")
    monitor_user: str = _field("", "user of an administrator by HTTP basic authentication")
    monitor_password: str = _secret("that user's password")
    monitor_allowed_hosts: str = _field(
        "", "names under which a reverse proxy serves the page, with commas between"
    )

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    @property
    def deadline_ms(self) -> int:
        return int(self.deadline_s * 1000)

    @property
    def result_ttl_ms(self) -> int:
        return int(self.result_ttl_s * 1000)


def _meant(name: str, known: set[str]) -> str:
    if similar := get_close_matches(name, known, n=1, cutoff=0.75):
        return f"Did you mean {similar[0]}?"
    return "README lists the settings."


def load_settings(**overrides: Any) -> Settings:
    """Settings of this process: overrides that are not None, then the environment, then `.env`.

    Raises ConfigError naming the variable.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for place, names in (("environment", list(os.environ)), (DOTENV, list(dotenv_values(DOTENV)))):
        for name in names:
            if name.startswith(PREFIX) and name not in known:
                raise ConfigError(
                    f"The variable {name} ({place}) is no setting of swarmkv.", hint=_meant(name, known)
                )
    try:
        settings = Settings(**{key: value for key, value in overrides.items() if value is not None})
    except ValidationError as exc:
        first = exc.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper() if first["loc"] else "settings"
        raise ConfigError(f"{name}={first.get('input')!r}: {first['msg']}.") from exc
    check_together(settings)
    return settings


def check_together(settings: Settings) -> None:
    """Raise ConfigError naming two settings that are fine alone and contradict each other."""
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
    if settings.sweep_s * 4 > settings.lease_s:
        raise ConfigError(
            f"SWARMKV_SWEEP_S={settings.sweep_s} is too slow for SWARMKV_LEASE_S={settings.lease_s}.",
            hint="At least four sweeps must fit into a lease: rarer ones look as if Redis had been away.",
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
