"""Waiting on a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

STEP_S = 0.01


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    """Return once `condition()` is true; fail after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"still not true after {timeout_s} s: {condition}"
        time.sleep(STEP_S)


async def eventually(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 20) -> None:
    """As `wait_until`, for a condition that must be awaited."""
    end_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < end_s, f"still not true after {timeout_s} s: {condition}"
        await asyncio.sleep(STEP_S)
