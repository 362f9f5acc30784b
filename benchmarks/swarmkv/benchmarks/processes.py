"""Child processes of a benchmark, and what the kernel says about a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarmkv.benchmarks.errors import BenchFailed

GRACE_S = 20.0
_LAST_BYTES = 1_000
# Turns that OpenMP's threads wait with the CPU busy: its own many are best for what has the machine for itself, few
# for what shares its cores. Peers are run with both.
OPENMP_TUNING = "GOMP_SPINCOUNT"
FEW_TURNS = "2000"
_OURS = (OPENMP_TUNING, "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Child:
    """A running program; its output is a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], **pipes: int) -> Child:
        """Start a program; `pipes` are stdin and stdout if they are no file."""
        with log.open("ab") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, **pipes}
            process = subprocess.Popen(list(argv), env=dict(env), start_new_session=True, **streams)  # type: ignore[call-overload]
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raise BenchFailed with its last words if it has ended."""
        if (code := self.process.poll()) is not None:
            words = self.log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
            raise BenchFailed(f"{self.name} ended with {code}.", hint=words)

    def end(self) -> None:
        """SIGTERM, and SIGKILL for what does not listen and for all that it has started and left."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its session is its own, see `start`
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def peer_environment(*, few_turns: bool = False) -> dict[str, str]:
    """The environment of a program that is not ours: none of our modules, our tuning only if asked for."""
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    return env | ({OPENMP_TUNING: FEW_TURNS} if few_turns else {})


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, in user and system mode."""
    # The name of the program is in parentheses, and may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int | str, name: str = "VmRSS") -> int:
    """A size from /proc/PID/status: VmRSS now, VmHWM at its highest, RssAnon, RssShmem."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise BenchFailed(f"The kernel does not say {name} of process {pid}.")


def reset_peak(pid: int | str = "self") -> None:
    """Let VmHWM start again from what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def open_files(pid: int) -> int:
    """File descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
