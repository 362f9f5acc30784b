"""The ledger beside a model of it: any order of calls, each of which may be lost on its way there or back.

After every step Redis must hold what the model says, to the last key. In the end everything is drained: time
passes, somebody sweeps, fresh workers come, and every accepted branch has one result.

FAULTS=long searches longer, each time elsewhere; --log-cli-level=INFO tells what happened.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swarmkv.protocol import keys
from swarmkv.protocol.ledger.jobs import Role
from swarmkv.protocol.messages import BranchState
from tests.ledger_checks import everything_has_ended, only_results_are_left, redis_agrees
from tests.ledger_driver import Fault
from tests.ledger_model import LEASE_S, MAX_REBUILDS, Branch
from tests.ledger_pair import DOCUMENTS, MODEL, LedgerPair, Worker, prefix_of
from tests.rounds import IS_LONG, by_round

# An exploration in which one of these never happened would prove little.
WHAT_HAPPENS = (
    "lost on the way there",
    "lost on the way back",
    "deaths",
    "leases mended",
    "deadlines mended",
    "queue entries mended",
    "late results refused",
    "runs cancelled",
    "branches cancelled",
    "branches run alone",
    "branches tried again",
    "branches given up after crashes",
    "branches given up after rebuilds",
    "drops refused",
)

logger = logging.getLogger(__name__)

which = st.integers(0, 11)
documents = st.sampled_from(DOCUMENTS)
faults = st.one_of(
    st.none(), st.none(), st.builds(Fault, command=st.sampled_from([0, 0, 0, 1, 2]), has_effect=st.booleans())
)


class LedgerMachine(RuleBasedStateMachine):
    """Producers and workers that come, crash, sleep, and lose calls in any order."""

    url: str
    tally: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.pair = LedgerPair(self.url, self.tally)
        self.workers: list[Worker] = []
        self.slow_run: tuple[Any, ...] | None = None
        self.tally["examples"] += 1

    def holding(self, role: str) -> list[tuple[Worker, Any]]:
        """Each job that a worker of a role believes to hold."""
        return [(worker, taken) for worker in self.workers if worker.role == role for taken in worker.held.values()]

    def new_worker(self, role: Role) -> Worker:
        self.workers.append(worker := self.pair.new_worker(role))
        return worker

    # -- producers

    @initialize(workers=st.sampled_from([1, 2]))
    def begin(self, workers: int) -> None:
        """Most examples would otherwise end before anything is decoded."""
        self.new_worker("prefill")
        for _ in range(workers):
            self.new_worker("branch")
        self.pair.submit(DOCUMENTS[0], 3, 9_000, None)
        self.prefill_all()

    @rule(document=documents, count=st.integers(1, 4), deadline_s=st.sampled_from([40, 9_000, 9_000]), fault=faults)
    def submit(self, document: bytes, count: int, deadline_s: int, fault: Fault | None) -> None:
        self.pair.submit(document, count, deadline_s, fault)

    @precondition(lambda self: self.slow_run is None)
    @rule(document=documents, count=st.integers(1, 2))
    def submit_slowly(self, document: bytes, count: int) -> None:
        """One command now, the next ones whenever `submit_on` says, others between them."""
        run_id, work = self.pair.submission(document, count, 9_000)
        self.slow_run = (run_id, prefix_of(document).prefix_id, count, 9_000)
        self.submitted(self.pair.driver.start_slowly(work))

    @precondition(lambda self: self.slow_run is not None)
    @rule()
    def submit_on(self) -> None:
        self.submitted(self.pair.driver.go_on_slowly())

    def submitted(self, answers: list[Any] | None) -> None:
        if answers is not None:
            assert self.slow_run is not None
            self.pair.accepted(answers, *self.slow_run)
            self.slow_run = None

    @precondition(lambda self: self.slow_run is None)
    @rule(document=documents)
    def submit_beside_one_who_dies(self, document: bytes) -> None:
        """Both find the document missing; the one who dies uploads it behind the other's acceptance."""
        self.submit_slowly(document, 1)
        self.pair.submit(document, 1, 9_000, None)
        if self.slow_run is not None:
            self.submit_on()
        if self.slow_run is not None:
            self.die_while_submitting()

    @precondition(lambda self: self.slow_run is not None)
    @rule()
    def die_while_submitting(self) -> None:
        self.pair.driver.die_slowly()
        self.slow_run = None

    @precondition(lambda self: self.pair.model.runs)
    @rule(pick=which, names=st.sampled_from([[], ["0"], ["1", "2"], ["nobody"]]), fault=faults)
    def cancel(self, pick: int, names: list[str], fault: Fault | None) -> None:
        run_id = picked(list(self.pair.model.runs), pick)
        self.pair.cancel(run_id, names, fault)
        for _, taken in self.holding("branch"):
            if taken.run_id == run_id:  # who decodes it has not heard of it yet
                self.pair.speak(taken, None)

    @precondition(lambda self: self.pair.model.runs)
    @rule(pick=which, states=st.sampled_from([["failed"], ["failed", "cancelled"]]), fault=faults)
    def retry(self, pick: int, states: list[BranchState], fault: Fault | None) -> None:
        self.pair.retry(picked(list(self.pair.model.runs), pick), states, fault)

    # -- workers

    @precondition(lambda self: len(self.workers) < 5)
    @rule(role=st.sampled_from(["prefill", "branch", "branch"]))
    def come(self, role: Role) -> None:
        self.new_worker(role)

    @precondition(lambda self: self.workers)
    @rule(pick=which, fault=faults)
    def beat(self, pick: int, fault: Fault | None) -> None:
        self.pair.beat(picked(self.workers, pick), fault)

    @precondition(lambda self: self.workers)
    @rule(pick=which, limit=st.integers(1, 4), resident=st.sampled_from([None, *DOCUMENTS]), fault=faults)
    def take(self, pick: int, limit: int, resident: bytes | None, fault: Fault | None) -> None:
        self.pair.take(picked(self.workers, pick), limit, resident, fault)

    @precondition(lambda self: self.holding("prefill"))
    @rule(pick=which, works=st.sampled_from([True, True, False]), fault=faults)
    def end_prefill(self, pick: int, works: bool, fault: Fault | None) -> None:
        worker, taken = picked(self.holding("prefill"), pick)
        self.pair.end_prefill(worker, taken, works, fault)

    @rule()
    def prefill_all(self) -> None:
        for worker in self.workers:
            if worker.role == "prefill":
                self.pair.take(worker, 9, None, None)
        for held in self.holding("prefill"):
            self.pair.end_prefill(*held, True, None)

    @precondition(lambda self: self.holding("branch"))
    @rule(pick=which, others=st.booleans(), state=st.sampled_from(["done", "done", "failed"]), fault=faults)
    def finish(self, pick: int, others: bool, state: str, fault: Fault | None) -> None:
        worker, taken = picked(self.holding("branch"), pick)
        self.pair.finish(worker, list(worker.held.values()) if others else [taken], state, fault)

    @precondition(lambda self: self.holding("branch"))
    @rule(pick=which, fault=faults)
    def rebuild(self, pick: int, fault: Fault | None) -> None:
        worker, taken = picked(self.holding("branch"), pick)
        self.pair.rebuild(worker, taken, fault)

    @precondition(lambda self: {worker.role for worker in self.workers} == {"prefill", "branch"})
    @rule(pick=which, fault=faults)
    def lose_the_snapshot_again_and_again(self, pick: int, fault: Fault | None) -> None:
        worker = picked([worker for worker in self.workers if worker.role == "branch"], pick)
        for _ in range(MAX_REBUILDS + 1):
            self.pair.take(worker, 9, None, None)
            for taken in list(worker.held.values()):
                self.pair.rebuild(worker, taken, fault)
            self.prefill_all()

    @precondition(lambda self: self.holding("branch"))
    @rule(pick=which, fault=faults)
    def speak(self, pick: int, fault: Fault | None) -> None:
        _, taken = picked(self.holding("branch"), pick)
        self.pair.speak(taken, fault)

    @precondition(lambda self: self.workers)
    @rule(pick=which, delay_s=st.sampled_from([0, 2]), fault=faults)
    def hand_back(self, pick: int, delay_s: int, fault: Fault | None) -> None:
        self.pair.hand_back(picked(self.workers, pick), delay_s, fault)

    @precondition(lambda self: self.workers)
    @rule(pick=which, unheard=st.booleans(), hand_back_fault=faults, leave_fault=faults)
    def stop(self, pick: int, unheard: bool, hand_back_fault: Fault | None, leave_fault: Fault | None) -> None:
        worker = self.workers.pop(pick % len(self.workers))
        if unheard:
            self.pair.take(worker, 2, None, Fault(0, has_effect=True))
        self.pair.hand_back(worker, 0, hand_back_fault)
        self.pair.leave(worker, leave_fault)

    @precondition(lambda self: self.workers)
    @rule(pick=which)
    def die(self, pick: int) -> None:
        self.workers.pop(pick % len(self.workers))
        self.tally["deaths"] += 1

    @rule(role=st.sampled_from(["prefill", "branch"]), limit=st.integers(1, 4), times=st.sampled_from([1, 1, 4]))
    def crash_at_work(self, role: Role, limit: int, times: int) -> None:
        for _ in range(times):
            worker = self.new_worker(role)
            self.pair.take(worker, limit, None, None)
            self.workers.remove(worker)
            self.tally["deaths"] += 1
            self.live(set())

    @precondition(lambda self: any(worker.role == "branch" for worker in self.workers))
    @rule(pick=which, fault=faults)
    def oversleep(self, pick: int, fault: Fault | None) -> None:
        """A worker that was stopped for longer than its lease goes on as if nothing had happened."""
        worker = picked([worker for worker in self.workers if worker.role == "branch"], pick)
        self.pair.take(worker, 2, None, None)
        self.live({self.workers.index(worker)})
        if len(self.workers) < 6:  # who runs it again
            self.pair.take(self.new_worker("branch"), 9, None, None)
        self.pair.finish(worker, list(worker.held.values()), "done", fault)

    # -- the world

    @rule(document=documents, fault=faults)
    def evict(self, document: bytes, fault: Fault | None) -> None:
        self.pair.forget(prefix_of(document).prefix_id, fault)

    @rule(document=documents, force=st.booleans(), fault=faults)
    def drop(self, document: bytes, force: bool, fault: Fault | None) -> None:
        self.pair.drop(prefix_of(document).prefix_id, force, fault)

    @rule(seconds=st.sampled_from([5, 10, 10, LEASE_S + 5]))
    def wait(self, seconds: int) -> None:
        self.pair.wait(seconds)

    @rule(fault=faults)
    def sweep(self, fault: Fault | None) -> None:
        self.pair.sweep(fault)

    @rule(asleep=st.sets(which, max_size=3))
    def live(self, asleep: set[int]) -> None:
        """Time passes as it does: who is awake beats, and somebody sweeps."""
        for _ in range(LEASE_S // 10 + 1):
            self.pair.wait(10)
            for number, worker in enumerate(self.workers):
                if number not in asleep:
                    self.pair.beat(worker, None)
            self.pair.sweep(None)

    @rule(pick=which, definition=st.booleans())
    def lose_an_arq_key(self, pick: int, definition: bool) -> None:
        model, raw = self.pair.model, self.pair.driver.raw
        if not (queued := model.work("queued")):
            return
        item = picked(queued, pick)
        if definition:
            raw.delete(f"arq:job:{item.job}")
            model.undefined.add(item.job)
        else:
            role = "branch" if isinstance(item, Branch) else "prefill"
            raw.zrem(keys.key("queue", role=role, alias=MODEL), item.job)
            model.unqueued.add(item.job)

    @invariant()
    def redis_agrees(self) -> None:
        self.tally["steps"] += 1
        redis_agrees(self.pair)

    # -- the end

    def teardown(self) -> None:
        try:
            if self.slow_run is not None:
                self.die_while_submitting()
            self.pair.drain()
            redis_agrees(self.pair)
            everything_has_ended(self.pair)
            only_results_are_left(self.pair)
        finally:
            self.pair.close()


def picked(items: list[Any], number: int) -> Any:
    return items[number % len(items)]


@pytest.mark.timeout(by_round(180, 7_200))
def test_the_ledger_does_what_its_model_does_whatever_is_lost(redis_url: str) -> None:
    LedgerMachine.url = redis_url
    LedgerMachine.tally = tally = Counter[str]()
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=by_round(200, 2_000),
            stateful_step_count=by_round(40, 60),
            deadline=None,
            database=None,
            derandomize=not IS_LONG,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    logger.info("%s", dict(tally))
    assert [what for what in WHAT_HAPPENS if not tally[what]] == []
