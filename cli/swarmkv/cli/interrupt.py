"""Ending on a signal, in stages.

The first signal cancels the work, whose `finally` and `async with` blocks then tidy up. A second Ctrl-C
cancels the tidying too, which then takes its short way.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The work was ended by a signal, and has tidied up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_interruptible(work: Coroutine[Any, Any, T], stopping: Callable[[], None]) -> T:
    """asyncio.run, in which SIGINT, SIGTERM and SIGHUP cancel `work`; then raises Interrupted.

    `stopping` is called at the first of them.
    """
    return asyncio.run(_interruptible(work, stopping))


async def _interruptible(work: Coroutine[Any, Any, T], stopping: Callable[[], None]) -> T:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def on_signal(number: int) -> None:
        if not received:
            stopping()
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
