"""The ledger and its model side by side: each call is made on Redis, and on the model if it took effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swarmkv.protocol.errors import SnapshotMissing, SwarmkvError
from swarmkv.protocol.events import BranchText
from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.ledger import Ledger, Outcome, TakenBranch, TakenPrefill
from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.messages import (
    BranchResult,
    BranchSpec,
    BranchState,
    PrefixSpec,
    RunReport,
    RunSpec,
    SnapshotInfo,
    WorkerInfo,
)
from tests.ledger_driver import Driver, Fault, Follower, Reply
from tests.ledger_model import LEASE_S, MAX_REBUILDS, MAX_SOLO_CRASHES, STALE_S, Branch, LedgerModel, Prefix

START_S = 1_000_000
TTL_S = 500_000
DOCUMENTS = [b"one", b"two", b"three"]
MODEL = "default"


@dataclass
class Worker:
    """A process: what it believes that it holds."""

    id: str
    role: Role
    held: dict[str, Any] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        return any(isinstance(taken, TakenBranch) and taken.is_solo for taken in self.held.values())


def prefix_of(document: bytes) -> PrefixSpec:
    return PrefixSpec(model=MODEL, document=digest_bytes(document))


def snapshot_of(prefix_id: str) -> str:
    return digest_bytes(prefix_id.encode())


def outcome_of(taken: TakenBranch, state: Any = "done") -> Outcome:
    """The same each time, as a worker that tries again sends the same."""
    return Outcome(taken, state, BranchResult(text=taken.job_id, finish_reason="stop"))


def jobs_in(reply: Reply) -> list[str]:
    """What a take gave away, also if nobody was told."""
    return [row[0].decode() for row in reply.answers[0][1]] if reply.took_effect else []


class LedgerPair:
    """Redis is emptied. `close` it."""

    def __init__(self, url: str, tally: Counter[str]) -> None:
        self.driver = Driver(url, START_S)
        self.model = LedgerModel(START_S)
        self.followers: dict[str, Follower] = {}
        self.tally = tally  # what happened
        self.number = 0

    def close(self) -> None:
        self.driver.close()

    def call(self, work: Any, fault: Fault | None = None) -> Reply:
        reply = self.driver.call(work, fault)
        self.tally["calls"] += 1
        if reply.is_lost:
            self.tally["lost on the way back" if reply.took_effect else "lost on the way there"] += 1
        return reply

    def agree(self, reply: Reply, expected: Any) -> None:
        """The caller was told what the model says, if it was told anything."""
        assert reply.is_lost or reply.value == expected, (reply.value, expected)

    def new_worker(self, role: Role) -> Worker:
        worker = Worker(f"w{self.new_id()}", role)
        self.beat(worker, None)
        return worker

    def new_id(self) -> str:
        self.number += 1
        return f"{self.number:x}"

    def submission(self, document: bytes, count: int, deadline_s: int) -> tuple[str, Any]:
        run_id, prefix = self.new_id(), prefix_of(document)
        spec = RunSpec(run_id=run_id, name=run_id, prefix=prefix, document_bytes=len(document))
        branches = [BranchSpec(name=f"{index}", prompt="?") for index in range(count)]

        async def submit(ledger: Ledger) -> None:
            await ledger.runs.submit(
                spec, branches, document, deadline_ms=deadline_s * 1000, ttl_ms=TTL_S * 1000, any_model=True
            )

        return run_id, submit

    def accepted(self, answers: Sequence[Any], *run: Any) -> None:
        if any(answer[0] == b"accepted" for answer in answers):
            self.model.submit(*run)
            self.followers[run[0]] = Follower()

    def submit(self, document: bytes, count: int, deadline_s: int, fault: Fault | None) -> None:
        run_id, work = self.submission(document, count, deadline_s)
        reply = self.call(work, fault)
        self.accepted(reply.answers, run_id, prefix_of(document).prefix_id, count, deadline_s)
        assert reply.is_lost or run_id in self.model.runs

    def cancel(self, run_id: str, names: Sequence[str], fault: Fault | None) -> None:
        reply = self.call(lambda ledger: ledger.runs.cancel(run_id, names), fault)
        if reply.took_effect:
            ended = self.model.cancel(run_id, names)
            self.agree(reply, ended)
            self.tally["branches cancelled" if names else "runs cancelled"] += bool(ended)

    def retry(self, run_id: str, states: list[BranchState], fault: Fault | None) -> None:
        reply = self.call(lambda ledger: ledger.recovery.retry(run_id, states), fault)
        if reply.took_effect:
            names = [str(branch.index) for branch in self.model.retry(run_id, states)]
            self.agree(reply, names)
            self.followers[run_id].expect_again(names)
            self.tally["branches tried again"] += len(names)

    def beat(self, worker: Worker, fault: Fault | None) -> None:
        info = WorkerInfo(id=worker.id, role=worker.role, model=MODEL, pid=1, host="h", slots=8)
        held = list(worker.held)
        reply = self.call(lambda ledger: ledger.fleet.beat(info, held, lease_ms=LEASE_S * 1000), fault)
        if reply.took_effect:
            self.agree(reply, self.model.beat(worker.id, held))
        for job in reply.value or []:
            del worker.held[job]

    def take(self, worker: Worker, limit: int, resident: bytes | None, fault: Fault | None) -> None:
        if worker.is_alone:
            return
        held, lease_ms = len(worker.held), LEASE_S * 1000
        residents = [snapshot_of(prefix_of(resident).prefix_id)] if resident else []

        def work(ledger: Ledger) -> Any:
            if worker.role == "prefill":
                return ledger.jobs.take_prefills(MODEL, worker.id, limit=limit, lease_ms=lease_ms)
            return ledger.jobs.take_branches(
                MODEL, worker.id, limit=limit, lease_ms=lease_ms, held=held, residents=residents
            )

        reply = self.call(work, fault)
        if reply.took_effect:
            kind = Prefix if worker.role == "prefill" else Branch
            self.model.take(worker.id, kind, jobs_in(reply), limit=limit, held=held)
        worker.held |= {taken.job_id: taken for taken in reply.value or []}
        self.tally["branches run alone"] += worker.is_alone

    def end_prefill(self, worker: Worker, taken: TakenPrefill, works: bool, fault: Fault | None) -> None:
        key = snapshot_of(taken.prefix_id)
        info = SnapshotInfo(snapshot=key, prefix_tokens=7, size_bytes=9, prefill_ms=1.5, identity="", host="h")

        def work(ledger: Ledger) -> Any:
            if works:
                return ledger.jobs.register(worker.id, taken, info, decoded=True, ttl_ms=TTL_S * 1000)
            return ledger.jobs.fail_prefill(worker.id, taken, SwarmkvError("too long"))

        reply = self.call(work, fault)
        if reply.took_effect:
            effect = self.model.register if works else self.model.fail_prefill
            self.agree(reply, effect(worker.id, taken.job_id))
        if not reply.is_lost:
            del worker.held[taken.job_id]

    def finish(self, worker: Worker, taken: list[TakenBranch], state: str, fault: Fault | None) -> None:
        outcomes = [outcome_of(item, state) for item in taken]
        reply = self.call(lambda ledger: ledger.jobs.finish(worker.id, outcomes), fault)
        if reply.took_effect:
            written = [self.model.finish(worker.id, item.job_id, state, item.job_id) for item in taken]
            self.agree(reply, written)
            self.tally["late results refused"] += written.count(False)
        if not reply.is_lost:
            for item in taken:
                del worker.held[item.job_id]

    def rebuild(self, worker: Worker, taken: TakenBranch, fault: Fault | None) -> None:
        gone = SnapshotMissing("gone")
        reply = self.call(
            lambda ledger: ledger.jobs.rebuild(worker.id, taken, gone, max_rebuilds=MAX_REBUILDS), fault
        )
        if reply.took_effect:
            self.agree(reply, self.model.rebuild(worker.id, taken.job_id, taken.generation))
        if not reply.is_lost:
            del worker.held[taken.job_id]

    def hand_back(self, worker: Worker, delay_s: int, fault: Fault | None) -> None:
        held = list(worker.held)
        reply = self.call(
            lambda ledger: ledger.jobs.hand_back(worker.id, held, reason="stop", delay_ms=delay_s * 1000), fault
        )
        if reply.took_effect:
            self.agree(reply, self.model.hand_back(worker.id, held, delay_s))
        if not reply.is_lost:
            worker.held.clear()

    def report(self, run_id: str) -> RunReport:
        report: RunReport = self.call(lambda ledger: ledger.runs.report(run_id)).value
        return report

    def speak(self, taken: TakenBranch, fault: Fault | None) -> None:
        event = BranchText(branch=taken.spec.name, attempt=taken.attempt, offset=0, text="x")
        self.call(lambda ledger: ledger.jobs.emit({taken.run_id: [event]}), fault)

    def leave(self, worker: Worker, fault: Fault | None) -> None:
        reply = self.call(lambda ledger: ledger.fleet.leave(worker.id, reason="stop"), fault)
        if reply.took_effect:
            self.agree(reply, self.model.leave(worker.id))

    def forget(self, prefix_id: str, fault: Fault | None) -> None:
        reply = self.call(lambda ledger: ledger.jobs.forget_snapshots([snapshot_of(prefix_id)]), fault)
        if reply.took_effect and prefix_id in self.model.prefixes:
            self.model.forget(prefix_id)

    def drop(self, prefix_id: str, force: bool, fault: Fault | None) -> None:
        reply = self.call(lambda ledger: ledger.jobs.drop_snapshot(snapshot_of(prefix_id), force=force), fault)
        if reply.took_effect:
            is_dropped = self.model.drop(prefix_id, force)
            self.agree(reply, is_dropped)
            self.tally["drops refused"] += not is_dropped

    def sweep(self, fault: Fault | None) -> None:
        reply = self.call(
            lambda ledger: ledger.fleet.sweep(
                max_solo_crashes=MAX_SOLO_CRASHES, lease_ms=LEASE_S * 1000, stale_ms=STALE_S * 1000
            ),
            fault,
        )
        if reply.took_effect:
            expected = self.model.sweep()
            assert tuple(reply.answers[0]) == expected
            for mended, count in zip(("leases", "deadlines", "queue entries"), expected, strict=True):
                self.tally[f"{mended} mended"] += count

    def wait(self, seconds: int) -> None:
        self.driver.advance(seconds)
        self.model.now_s += seconds

    def drain(self) -> None:
        """A fresh worker of each role ends what all the others left."""
        prefill, branch = self.new_worker("prefill"), self.new_worker("branch")
        for _ in range(100):
            self.sweep(None)
            self.take(prefill, 9, None, None)
            for taken in list(prefill.held.values()):
                self.end_prefill(prefill, taken, True, None)
            self.take(branch, 9, None, None)
            self.finish(branch, list(branch.held.values()), "done", None)
            if not any(run.is_open for run in self.model.runs.values()):
                return
            self.wait(5)
            for worker in (prefill, branch):
                self.beat(worker, None)
        raise AssertionError("work is left over")
