"""What this machine and this build of llama.cpp are, told without loading llama.cpp."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from swarmkv.protocol.identity import digest_fields

_PACKAGE = "llama-cpp-python"
_UNLIMITED = 1 << 16


def physical_cores() -> int:
    """Cores that this process may use: hyper-threads counted once, the container's CPU quota respected."""
    allowed = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota_cores()))


def logical_cores() -> int:
    """CPUs that this process may use, hyper-threads counted each, the container's CPU quota respected."""
    return max(1, min(len(os.sched_getaffinity(0)), _quota_cores()))


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's name as Linux writes it, else the kind of machine."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()


def library_build() -> str:
    """A digest of the installed llama.cpp libraries, from the installer's own record of their hashes.

    Another compiler, other flags or another version give another digest.
    """
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""
    libraries = {
        str(file): file.hash.value for file in distribution.files or () if file.suffix == ".so" and file.hash
    }
    return digest_fields("llama_build", version=distribution.version, **libraries)


def _siblings(cpu: int) -> str:
    """The hyper-threads of a CPU's core, as Linux writes them; the CPU alone when it does not say."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _quota_cores() -> int:
    """Whole cores of the cgroup's CPU quota (rounded up), or very many."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if quota == "max" else -(-int(quota) // int(period))
