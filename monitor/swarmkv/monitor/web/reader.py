"""The overview, read at most about once a second however many pages show it."""

from __future__ import annotations

import asyncio
import time

from swarmkv.monitor.overview import Overview, read_overview
from swarmkv.protocol.ledger import Ledger

FRESH_S = 0.8


class OverviewReader:
    """Reads when somebody asks and what it has is old."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = asyncio.Lock()
        self._read_s = float("-inf")
        self._overview: Overview | None = None

    async def read(self) -> Overview:
        """The overview of this moment, or of one just before. Raises BrokerError."""
        async with self._lock:
            if self._overview is None or time.monotonic() - self._read_s > FRESH_S:
                self._overview = await read_overview(self._ledger)
                self._read_s = time.monotonic()
            return self._overview
