"""How much room a store really has.

Its file system's size, its budget, the container's memory limit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = (1 << 63) - 1
_OWN_FILES_BYTES = (
    64 * 1024
)  # of the store, beside snapshots: its lock and its token; a volume is as large as the budget
_CGROUPS = Path("/sys/fs/cgroup")
_TMPFS_TYPES = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Capacity:
    """A file system's room in bytes.

    UNLIMITED where it states no size, as tmpfs with size=0 does.
    """

    total_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, target: int | Path) -> Capacity:
        """Of the file system that holds a path or an open file."""
        stat = os.statvfs(target)
        if not stat.f_blocks:
            return cls(UNLIMITED, UNLIMITED)
        return cls(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def budget_problem(path: Path, budget_bytes: int, used_bytes: int) -> str | None:
    """Why the store at `path` cannot grow to its budget, and what to do; None when it can."""
    capacity = Capacity.of(path)
    reachable = min(capacity.total_bytes, capacity.free_bytes + used_bytes)
    if reachable + _OWN_FILES_BYTES < budget_bytes:
        return (
            f"The store at {path} needs {format_bytes(budget_bytes)}, its file system has "
            f"{format_bytes(reachable)} for it. Give it more room (in Docker: --shm-size, or shm_size "
            "or a tmpfs volume in compose), or lower SWARMKV_STORE_BUDGET_BYTES."
        )
    limit = memory_limit_bytes() if _is_in_memory(path) else UNLIMITED
    if limit < budget_bytes:
        return (
            f"The store at {path} needs {format_bytes(budget_bytes)} of memory, this container is limited to "
            f"{format_bytes(limit)}, which snapshots count against. Raise its memory limit, or lower "
            "SWARMKV_STORE_BUDGET_BYTES."
        )
    return None


def context_problem(path: Path, budget_bytes: int, needed_bytes: int, tokens: int) -> str | None:
    """Why the store at `path` can never hold the snapshot of a whole context, and what to do; None when it can."""
    limits = {
        "SWARMKV_STORE_BUDGET_BYTES allows": budget_bytes,
        "its file system has": Capacity.of(path).total_bytes,
        "this container is limited to": memory_limit_bytes() if _is_in_memory(path) else UNLIMITED,
    }
    reason, limit_bytes = min(limits.items(), key=lambda limit: limit[1])
    if needed_bytes <= limit_bytes:
        return None
    return (
        f"A document that fills the context of {tokens:,} tokens makes a snapshot of {format_bytes(needed_bytes)}; "
        f"for the store at {path} {reason} {format_bytes(limit_bytes)}. Raise that (docker-compose.yml makes the "
        "volume as large as SWARMKV_STORE_BUDGET_BYTES; PREFILL_MEMORY must hold it, too), or lower SWARMKV_N_CTX."
    )


def memory_limit_bytes(membership: Path = Path("/proc/self/cgroup"), cgroups: Path = _CGROUPS) -> int:
    """The tightest memory limit of this process's control groups (version 2), UNLIMITED without one."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return UNLIMITED
    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = cgroups / group.lstrip("/")
    folders = [folder, *folder.parents]
    return min((_limit(f) for f in folders if f.is_relative_to(cgroups)), default=UNLIMITED)


def format_bytes(size_bytes: int) -> str:
    """A size for people: 512 bytes, 64.0 MiB, 4.0 GiB."""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def _limit(folder: Path) -> int:
    try:
        text = (folder / "memory.max").read_text().strip()
    except OSError:
        return UNLIMITED
    return int(text) if text.isdigit() else UNLIMITED


def _is_in_memory(path: Path) -> bool:
    """Whether the longest mount point above `path` is one whose files are memory."""
    real = path.resolve()
    best = ("", "")
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        if real.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1] in _TMPFS_TYPES
