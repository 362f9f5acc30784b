"""An object in a process of its own: every scheme is measured apart from what others left in memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from swarmkv.benchmarks.errors import BenchFailed

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
_PR_SET_PDEATHSIG = 1

_subject: Any = None


class Remote(Generic[T]):
    """What `make(*args)` returns, alive in a fresh interpreter until `close`.

    `make` must be importable. Call it from the thread that made it: the process ends with that thread.
    """

    def __init__(self, make: Callable[..., T], *args: object) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(os.getpid(),),
        )
        try:
            self._run(_make, make, args)
        except BaseException:
            self.close()
            raise

    def call(self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a method of the object returns or raises. Raises BenchFailed when its process died."""
        result: R = self._run(_call, method, args, kwargs)
        return result

    def close(self) -> None:
        """End the process. May be called twice."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, function: Callable[..., Any], *args: object) -> Any:
        try:
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool as exc:
            raise BenchFailed("A measuring process died.", hint="Is there enough memory? See dmesg.") from exc


def _prepare(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then ends this process


def _make(make: Callable[..., Any], args: tuple[object, ...]) -> None:
    global _subject
    _subject = make(*args)


def _call(method: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    return method(_subject, *args, **kwargs)
