"""Ending asyncio's tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

CANCEL_AGAIN_S = 0.5


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended. Once is not enough: redis-py sends through asyncio.wait_for, and before
    Python 3.12 that drops a cancellation which comes just when the sending is done.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
