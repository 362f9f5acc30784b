"""Ending on a signal, in stages.

The first signal cancels the work, whose `finally` and `async with` blocks then tidy up. A second one cancels the
tidying too, which then takes its short way.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSIST_S = 0.3


class Interrupted(Exception):
    """The work was ended by a signal, and has tidied up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_interruptible(work: Coroutine[Any, Any, T], stopping: Callable[[], None]) -> T:
    """asyncio.run, in which SIGINT, SIGTERM and SIGHUP cancel `work`; then raises Interrupted, however it ended.

    `stopping` is called at the first of them. A signal that this process was told to ignore (nohup, a background
    job) stays ignored.
    """
    return asyncio.run(_interruptible(work, stopping))


def run_abandonable(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run for work that has nothing to tidy up: the first signal ends it for certain, by Interrupted."""
    return asyncio.run(_abandonable(work))


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended.

    Once is not enough: a cancellation that meets redis-py's timeout of zero seconds is taken for that timeout.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_S)


async def _interruptible(work: Coroutine[Any, Any, T], stopping: Callable[[], None]) -> T:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def on_signal(number: int) -> None:
        if not received:
            stopping()
        received.append(number)
        task.cancel()

    _listen(on_signal)
    try:
        return await task
    except (asyncio.CancelledError, Exception):
        # Work that is ended anywhere may end in any way: a call that is cut short has errors of its own.
        if received:
            raise Interrupted(received[0]) from None
        raise


async def _abandonable(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _listen(lambda number: None if received.done() else received.set_result(number))
    either: set[asyncio.Future[Any]] = {task, received}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    await end(task)
    raise Interrupted(received.result())


def _listen(on_signal: Callable[[int], None]) -> None:
    """Call `on_signal` for each of _SIGNALS, until the loop closes."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
