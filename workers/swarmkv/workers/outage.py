"""Saying that Redis is away: once an outage, not once a try."""

from __future__ import annotations

import logging

from swarmkv.protocol.backoff import Backoff

logger = logging.getLogger(__name__)


async def ride_out(what: str, exc: Exception, backoff: Backoff) -> None:
    """Log what waits and why, and wait; as a warning only for the first failure of an outage."""
    level = logging.WARNING if backoff.num_failures == 0 else logging.DEBUG
    logger.log(level, "%s: %s", what, exc, extra={"action": "broker_lost"})
    await backoff.pause()
