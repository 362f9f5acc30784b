"""The ledger: the state of runs, branches, snapshots and workers in Redis, and the scripts that change it.

arq's keys are a hint that can be rebuilt from it. What belongs together changes in one script.
"""

from __future__ import annotations

from arq.connections import ArqRedis

from swarmkv.protocol.ledger.audit import AuditEntry, AuditLedger
from swarmkv.protocol.ledger.catalog import RunCatalog, RunQuery, RunRow
from swarmkv.protocol.ledger.commands import CommandLedger
from swarmkv.protocol.ledger.fleet import FleetLedger, LiveWorker, SweepCounts
from swarmkv.protocol.ledger.inspection import BranchView, RunInspection, RunView
from swarmkv.protocol.ledger.jobs import JobLedger, Outcome, TakenBranch, TakenPrefill, error_info
from swarmkv.protocol.ledger.limits import Limits
from swarmkv.protocol.ledger.recovery import RecoveryLedger
from swarmkv.protocol.ledger.runs import RunLedger, RunSummary
from swarmkv.protocol.ledger.scripts import Scripts
from swarmkv.protocol.ledger.statistics import BrokerState, QueueState, StatisticsLedger, WorkState
from swarmkv.protocol.ledger.stores import StoreLedger

__all__ = [
    "AuditEntry",
    "BranchView",
    "BrokerState",
    "Ledger",
    "Limits",
    "LiveWorker",
    "Outcome",
    "QueueState",
    "RunCatalog",
    "RunQuery",
    "RunRow",
    "RunSummary",
    "RunView",
    "SweepCounts",
    "TakenBranch",
    "TakenPrefill",
    "WorkState",
    "error_info",
]


class Ledger:
    """One ledger over one Redis client; the client stays the caller's to close."""

    def __init__(self, redis: ArqRedis, *, max_events: int) -> None:
        scripts = self._scripts = Scripts(redis, max_events=max_events)
        self.runs = RunLedger(redis, scripts)
        self.jobs = JobLedger(redis, scripts)
        self.fleet = FleetLedger(redis, scripts)
        self.recovery = RecoveryLedger(redis, scripts)
        self.statistics = StatisticsLedger(redis)
        self.stores = StoreLedger(redis, scripts)
        self.commands = CommandLedger(redis, scripts, self.fleet)
        self.catalog = RunCatalog(redis)
        self.inspection = RunInspection(redis)
        self.audit = AuditLedger(redis)

    async def takes_scripts(self) -> bool:
        """Whether changes can be made; false for a user who may only read. Raises BrokerError if Redis is away."""
        return await self._scripts.are_taken()
