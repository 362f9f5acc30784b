"""The one import of llama_cpp: environment, initialisation, log, and what the hardware offers.

Everything else imports `llama` from here, so that nothing can load the library before its environment is set.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from swarmkv.workers.engine import spinning
from swarmkv.workers.engine.machine import physical_cores

spinning.apply()  # before libgomp is loaded

import llama_cpp as llama  # noqa: E402 - see above

__all__ = ["BUILD", "collect_log", "cpu_features", "has_gpu", "last_error", "llama", "physical_cores"]

logger = logging.getLogger(__name__)

BUILD = f"llama-cpp-python {llama.__version__}, llama.cpp {llama.llama_version().decode()}"

# Its warnings are tuning advice, and its errors are named by the error that we raise (or are none: a cancelled
# decode). So nothing of it is louder than INFO.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
_ERROR, _CONTINUED = 4, 5


class _Log:
    """Whole lines from llama.cpp's pieces; the latest errors are kept to name the reason of a failure."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=16)
        self.collectors: list[list[str]] = []
        self._level = 0
        self._partial = ""

    def take(self, level: int, text: str) -> None:
        """Called by llama.cpp on any thread, with a line or a part of one."""
        if level != _CONTINUED:
            self._level = level
        *lines, self._partial = (self._partial + text).split("\n")
        for line in filter(None, lines):
            self._write(line)

    def _write(self, line: str) -> None:
        if self._level == _ERROR:
            self.errors.append(line)
        for collector in self.collectors:
            collector.append(line)
        level = _LEVELS.get(self._level, logging.DEBUG)
        logger.log(level, "%s", line, extra={"action": "llama_log"})


_log = _Log()


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes | None, _user_data: object) -> None:
    _log.take(level, (text or b"").decode("utf-8", "replace"))


llama.llama_log_set(_on_log, ctypes.c_void_p(0))
llama.llama_backend_init()


@contextmanager
def collect_log() -> Iterator[list[str]]:
    """The lines that llama.cpp writes meanwhile, in this process."""
    lines: list[str] = []
    _log.collectors.append(lines)
    try:
        yield lines
    finally:
        # Not remove(): it compares by value, and two empty lists are equal.
        _log.collectors[:] = [other for other in _log.collectors if other is not lines]


def last_error(default: str = "llama.cpp gave no reason") -> str:
    """The latest error lines of llama.cpp, the most telling first, and forgets them."""
    lines = [line.split(": ", 1)[-1] for line in _log.errors]
    _log.errors.clear()
    # The last lines only repeat that it failed: "llama_model_load_from_file_impl: failed to load model".
    return "; ".join(dict.fromkeys(lines)) or default


def cpu_features() -> str:
    """The instruction sets this build uses, e.g. "CPU : AVX2 = 1 | FMA = 1"."""
    return str(llama.llama_print_system_info().decode()).strip(" |")


def has_gpu() -> bool:
    """Whether this build can put layers on a GPU that is there."""
    return bool(llama.llama_supports_gpu_offload())
