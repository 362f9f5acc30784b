"""What `/healthz` and `/readyz` answer: whether this process is alive, and whether it can be of use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.ledger import Ledger

READY_TIMEOUT_S = 2.0  # shorter than what asks: Kubernetes' default is 1 s, Docker's 30 s


@dataclass(frozen=True, slots=True)
class Probe:
    """An answer to a probe: an HTTP status, and one line of text."""

    status: int
    text: str


def healthz() -> Probe:
    """This process answers, whatever Redis does: restarting it would not help Redis."""
    return Probe(200, "ok\n")


async def readyz(ledger: Ledger) -> Probe:
    """Redis answers and takes the ledger's scripts, else status 503 and why. A user who may only read is ready."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            may_change = await ledger.takes_scripts()
    except BrokerError as exc:
        return Probe(503, f"{exc.message}\n")
    except TimeoutError:
        return Probe(503, f"Redis has not answered for {READY_TIMEOUT_S:g} s.\n")
    return Probe(200, "ok\n" if may_change else "ok, read only\n")
