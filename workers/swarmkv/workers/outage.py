"""While Redis is away: saying so once an outage, not once a try, and asking again until it is back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from swarmkv.protocol.backoff import Backoff
from swarmkv.protocol.errors import BrokerError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


async def ride_out(what: str, exc: Exception, backoff: Backoff) -> None:
    """Log what waits and why, and wait; as a warning only for the first failure of an outage."""
    level = logging.WARNING if backoff.num_failures == 0 else logging.DEBUG
    logger.log(level, "%s: %s", what, exc, extra={"action": "broker_lost"})
    await backoff.pause()


async def patiently(call: Callable[[], Awaitable[Answer]], what: str = "waiting for Redis") -> Answer:
    """Call the ledger, again if need be until Redis is back: what a job has done is not done twice for that.

    `what` is logged as waiting. Raises BrokerError when waiting does not help; the job's lease then runs out.
    """
    backoff = Backoff()
    while True:
        try:
            return await call()
        except BrokerError as exc:
            if not exc.is_passing:
                raise
            await ride_out(what, exc, backoff)


async def record(call: Callable[[], Awaitable[object]]) -> None:
    """As `patiently`, but what cannot be recorded is left to the job's lease, which will run out."""
    try:
        await patiently(call)
    except BrokerError as exc:
        logger.warning("not recorded: %s", exc, extra={"action": "broker_refused"})
