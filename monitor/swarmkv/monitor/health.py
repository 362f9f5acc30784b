"""What the monitor's `/healthz` and `/readyz` answer: whether it is alive, and whether it can be of use."""

from __future__ import annotations

import asyncio

from swarmkv.protocol.errors import BrokerError, BrokerForbidden
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.probes import Reply

READY_TIMEOUT_S = 2.0


async def healthz() -> Reply:
    """This process answers, whatever Redis does: restarting it would not help Redis."""
    return Reply.said(200, "ok")


async def readyz(ledger: Ledger) -> Reply:
    """Redis answers and takes the ledger's scripts, else status 503 and why. A user who may only read is ready."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await ledger.check()
    except BrokerForbidden:
        return Reply.said(200, "ok, read only")
    except BrokerError as exc:
        return Reply.said(503, exc.message)
    except TimeoutError:
        return Reply.said(503, f"Redis has not answered for {READY_TIMEOUT_S:g} s.")
    return Reply.said(200, "ok")
