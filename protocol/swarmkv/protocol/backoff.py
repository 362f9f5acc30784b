"""How long to wait before trying again: longer with every failure, never the same, never too long.

Everything that is retried takes its pauses from here. What is worth a retry at all is said by the error
(`BrokerError.is_passing`), not by the pause.
"""

from __future__ import annotations

import asyncio

from redis.backoff import EqualJitterBackoff

FIRST_S = 0.2  # a blink of Redis costs no more
LONGEST_S = 3.0  # far below a lease, so that whoever comes back is noticed in time
_MAX_DOUBLINGS = 30  # by then any pause is at its longest; the power of two must stay a float


class Backoff:
    """Pauses of one thing that is tried again: the next is up to twice the one before, from half of it on.

    Spread, so that a hundred workers do not come back at the same moment. One instance per outage, or `reset`
    after a success.
    """

    def __init__(self, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._policy = EqualJitterBackoff(cap=longest_s, base=first_s)
        self.num_failures = 0

    def reset(self) -> None:
        """It worked: the next failure starts over."""
        self.num_failures = 0

    def next_s(self) -> float:
        """Count a failure; the seconds to wait for it."""
        doublings = min(self.num_failures, _MAX_DOUBLINGS)
        self.num_failures += 1
        return self._policy.compute(doublings)

    async def pause(self) -> None:
        """Count a failure, and wait."""
        await asyncio.sleep(self.next_s())
