"""Guessing secrets is made slow: after a few wrong ones an address waits, twice as long each time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

FREE_TRIES = 5
MAX_WAIT_S = 300.0
MAX_ADDRESSES = 10_000


class Throttle:
    """Counts wrong secrets by address; the addresses that are kept are bounded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """How long this address has to wait before its next try; 0 if it need not."""
        count, last_s = self._failures.get(address, (0, 0.0))
        if count < FREE_TRIES:
            return 0.0
        return max(0.0, last_s + min(MAX_WAIT_S, 2.0 ** (count - FREE_TRIES)) - self._clock())

    def failed(self, address: str) -> None:
        """One wrong secret more; what lies long behind is forgiven."""
        count, last_s = self._failures.pop(address, (0, 0.0))
        count = 0 if self._clock() - last_s > 2 * MAX_WAIT_S else count
        self._failures[address] = (count + 1, self._clock())
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """The right one."""
        self._failures.pop(address, None)
