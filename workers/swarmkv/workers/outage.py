"""Saying that Redis is away: once an outage, not once a try."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def tell(what: str, exc: Exception, *, is_told: bool) -> None:
    """Log what waits and why; as a warning only if the caller has not yet told of this outage."""
    level = logging.DEBUG if is_told else logging.WARNING
    logger.log(level, "%s: %s", what, exc, extra={"action": "broker_lost"})
