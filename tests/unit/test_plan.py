"""The scheduler alone: who starts, what a batch holds, and that cells are never promised twice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from swarmkv.protocol.errors import BranchTooLong, EngineError, InvalidBranch, PrefixTooLong
from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.jobs import BranchJob, PrefillJob
from swarmkv.workers.engine.plan import Branch, Limits, Prefill, Rows, Scheduler


def scheduler(**changes: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "n_ctx": 1000,
        "n_positions": 1000,
        "n_batch": 64,
        "n_ubatch": 16,
        "slots": 4,
        "residents": 2,
        "can_prefill": True,
    }
    return Scheduler(Limits(**defaults | changes))


def branch_job(
    name: str, snapshot: str = "s", prefix: int = 100, prompt: int = 5, answer: int = 10, solo: bool = False
) -> BranchJob:
    return BranchJob(
        id=name,
        snapshot=snapshot,
        payload=memoryview(b""),
        prefix_tokens=prefix,
        prompt=np.arange(prompt, dtype=np.int32),
        sampling=Sampling(max_tokens=answer),
        solo=solo,
    )


def prefill_job(name: str, tokens: int) -> PrefillJob:
    return PrefillJob(name, np.arange(tokens, dtype=np.int32), lambda size: memoryview(bytearray(size)))


def admit_all(plan: Scheduler) -> list[str]:
    names = []
    while (admission := plan.admit()) is not None:
        names.append(admission.task.job.id)
    return names


def step(plan: Scheduler) -> list[Rows]:
    """Admit, decode, and answer every branch with a token; ends what is full or prefilled."""
    admit_all(plan)
    rows = plan.next_rows()
    plan.advance(rows)
    for row in rows:
        task = row.task
        if isinstance(task, Branch) and task.pending == 0:
            task.append(7)
            if task.is_full:
                plan.end(task)
        elif isinstance(task, Prefill) and task.pending == 0:
            plan.end(task)
    return rows


def summary(rows: list[Rows]) -> list[tuple[str, int, bool]]:
    return [(row.task.job.id, row.count, row.wants_logits) for row in rows]


def test_the_first_branch_restores_and_the_next_ones_fork_the_resident() -> None:
    plan = scheduler()
    for name in "ab":
        plan.submit(branch_job(name))

    first, second = plan.admit(), plan.admit()

    assert first is not None
    assert second is not None
    assert (first.must_restore, second.must_restore) == (True, False)
    assert first.task.sequence != second.task.sequence
    assert plan.residents["s"].forks == 2
    assert plan.free_cells == 1000 - 100 - 2 * 15


def test_prompts_of_many_branches_share_a_batch_and_only_their_last_rows_want_logits() -> None:
    plan = scheduler()
    for name in "abc":
        plan.submit(branch_job(name))
    admit_all(plan)

    assert summary(plan.next_rows()) == [("a", 5, True), ("b", 5, True), ("c", 5, True)]


def test_an_answering_branch_feeds_one_token_behind_its_prompt() -> None:
    plan = scheduler()
    plan.submit(branch_job("a"))
    step(plan)

    (row,) = plan.next_rows()

    assert (row.count, row.task.position, row.task.chunk(1).tolist()) == (1, 105, [7])


def test_a_long_prompt_is_cut_into_batches_and_asks_for_logits_once() -> None:
    plan = scheduler(n_batch=64)
    plan.submit(branch_job("a", prompt=3 * 64 + 1))

    assert [summary(step(plan))[0] for _ in range(4)] == [
        ("a", 64, False),
        ("a", 64, False),
        ("a", 64, False),
        ("a", 1, True),
    ]


def test_a_long_prompt_does_not_stall_those_who_answer() -> None:
    plan = scheduler()
    plan.submit(branch_job("quick"))
    step(plan)
    plan.submit(branch_job("long", prompt=40))

    assert summary(step(plan)) == [("quick", 1, True), ("long", 15, False)]
    assert summary(step(plan)) == [("quick", 1, True), ("long", 15, False)]
    assert summary(step(plan)) == [("quick", 1, True), ("long", 10, True)]


def test_prompts_go_on_when_the_answering_branches_fill_a_pass() -> None:
    plan = scheduler(n_ubatch=2, slots=4)
    for name in "abc":
        plan.submit(branch_job(name, prompt=1))
    step(plan)
    plan.submit(branch_job("late", prompt=9))

    assert summary(step(plan))[-1] == ("late", 1, False)


def test_a_prefill_is_one_pass_a_step_and_comes_last() -> None:
    plan = scheduler()
    plan.submit(prefill_job("p", 40))
    assert summary(step(plan)) == [("p", 16, False)]

    plan.submit(branch_job("a", prompt=5))
    assert summary(step(plan)) == [("a", 5, True), ("p", 16, False)]
    assert summary(step(plan)) == [("a", 1, True), ("p", 8, False)]
    assert plan.prefill is None


def test_a_solo_branch_waits_for_the_others_and_shares_its_batches_with_nobody() -> None:
    plan = scheduler()
    plan.submit(branch_job("a", answer=1))
    plan.submit(branch_job("alone", answer=1, solo=True))
    plan.submit(branch_job("b", answer=1))
    plan.submit(prefill_job("p", 20))

    assert [name for name, _, _ in summary(step(plan))] == ["a", "p"]
    assert [name for name, _, _ in summary(step(plan))] == ["alone"]
    assert [name for name, _, _ in summary(step(plan))] == ["b", "p"]


def test_admission_never_promises_more_cells_than_there_are() -> None:
    plan = scheduler(n_ctx=1000)
    for name in "abcd":
        plan.submit(branch_job(name, prefix=200, prompt=100, answer=300))

    assert admit_all(plan) == ["a", "b"]
    assert plan.free_cells == 0

    plan.end(plan.branches[0])
    assert admit_all(plan) == ["c"]


def test_a_job_that_waits_for_cells_is_not_overtaken() -> None:
    plan = scheduler()
    plan.submit(branch_job("a", prefix=100, answer=400))
    admit_all(plan)
    plan.submit(branch_job("large", prefix=100, answer=800))
    plan.submit(branch_job("small", prefix=100, answer=1))

    assert admit_all(plan) == []

    plan.end(plan.branches[0])
    assert admit_all(plan) == ["large", "small"]


def test_a_branch_that_waits_for_a_slot_lets_a_prefill_pass() -> None:
    plan = scheduler(slots=1)
    plan.submit(branch_job("a"))
    plan.submit(branch_job("b"))
    plan.submit(prefill_job("p", 10))

    assert admit_all(plan) == ["a", "p"]


def test_a_second_prefill_waits_and_lets_branches_pass() -> None:
    plan = scheduler()
    plan.submit(prefill_job("p", 10))
    plan.submit(prefill_job("q", 10))
    plan.submit(branch_job("a"))

    assert admit_all(plan) == ["p", "a"]


def test_an_idle_resident_stays_for_its_own_branches_and_goes_when_another_document_starts() -> None:
    plan = scheduler()
    plan.submit(branch_job("first", answer=1))
    step(plan)
    plan.submit(branch_job("again", answer=1))
    again = plan.admit()
    assert again is not None
    assert (again.evicted, again.must_restore) == ((), False)
    step(plan)
    plan.submit(branch_job("next", snapshot="other"))

    admission = plan.admit()

    assert admission is not None
    assert [resident.snapshot for resident in admission.evicted] == ["s"]


def test_of_the_residents_that_waiting_branches_want_the_oldest_goes_first_and_no_more_than_needed() -> None:
    snapshots = ["old", "middle", "new"]
    plan = scheduler(residents=4)
    for snapshot in snapshots:
        plan.submit(branch_job(snapshot, snapshot=snapshot, prefix=250, answer=1))
    step(plan)
    plan.submit(branch_job("next", snapshot="other", prefix=300, answer=100))
    for snapshot in snapshots:
        plan.submit(branch_job(f"waits for {snapshot}", snapshot=snapshot, prefix=250))

    admission = plan.admit()

    assert admission is not None
    assert [resident.snapshot for resident in admission.evicted] == ["old"]
    assert list(plan.residents) == ["middle", "new", "other"]


def test_a_resident_that_waiting_branches_want_is_evicted_last() -> None:
    plan = scheduler(residents=2)
    for snapshot in ("wanted", "unwanted"):
        plan.submit(branch_job(snapshot, snapshot=snapshot, answer=1))
    step(plan)
    plan.submit(branch_job("first", snapshot="other"))
    plan.submit(branch_job("second", snapshot="wanted"))

    admission = plan.admit()

    assert admission is not None
    assert [resident.snapshot for resident in admission.evicted] == ["unwanted"]


def test_a_forked_resident_is_never_evicted() -> None:
    plan = scheduler(residents=1)
    plan.submit(branch_job("a", snapshot="held"))
    admit_all(plan)
    plan.submit(branch_job("b", snapshot="other"))

    assert admit_all(plan) == []
    assert list(plan.residents) == ["held"]


def test_nothing_is_evicted_for_a_job_that_would_not_fit_even_then() -> None:
    plan = scheduler(residents=3)
    plan.submit(branch_job("idle", snapshot="idle", answer=1))
    plan.submit(branch_job("a", snapshot="held", prefix=500))
    step(plan)
    plan.submit(branch_job("b", snapshot="other", prefix=600))

    assert admit_all(plan) == []
    assert set(plan.residents) == {"idle", "held"}


def test_a_prefill_evicts_idle_residents_for_its_cells() -> None:
    plan = scheduler()
    plan.submit(branch_job("a", prefix=500, answer=1))
    step(plan)
    plan.submit(prefill_job("p", 600))

    admission = plan.admit()

    assert admission is not None
    assert [resident.snapshot for resident in admission.evicted] == ["s"]


@pytest.mark.parametrize("limits", [{"n_ctx": 300, "n_positions": 1000}, {"n_ctx": 1000, "n_positions": 300}])
def test_a_branch_that_can_never_fit_is_refused_with_the_numbers(limits: dict[str, int]) -> None:
    plan = scheduler(**limits)
    plan.submit(branch_job("fits", prefix=200, prompt=50, answer=50))

    with pytest.raises(BranchTooLong, match=r"200 .* 50 .* 51 are 301; the context holds 300"):
        plan.submit(branch_job("a", prefix=200, prompt=50, answer=51))


def test_a_document_that_can_never_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(PrefixTooLong, match=r"1001 tokens; the context holds 1000"):
        scheduler().submit(prefill_job("p", 1001))


def test_what_an_engine_cannot_do_is_refused() -> None:
    with pytest.raises(EngineError, match="no documents"):
        scheduler(can_prefill=False).submit(prefill_job("p", 1))
    with pytest.raises(EngineError, match="no branches"):
        scheduler(slots=0).submit(branch_job("a"))
    with pytest.raises(InvalidBranch, match="no tokens"):
        scheduler().submit(branch_job("a", prompt=0))


def test_a_suspect_is_decoded_alone_until_all_of_it_went_through() -> None:
    plan = scheduler(n_batch=64)
    plan.submit(branch_job("a", prompt=70))
    plan.submit(branch_job("b"))
    admit_all(plan)
    for branch in plan.branches:
        branch.is_suspect = True

    assert summary(step(plan)) == [("a", 64, False)]
    assert summary(step(plan)) == [("a", 6, True)]
    assert summary(step(plan)) == [("b", 5, True)]
    assert summary(step(plan)) == [("a", 1, True), ("b", 1, True)]


def test_a_branch_that_starts_again_feeds_its_prompt_and_what_it_said() -> None:
    plan = scheduler()
    plan.submit(branch_job("a", prompt=5))
    for _ in range(3):
        step(plan)
    branch = plan.branches[0]
    branch.fed = 0

    (row,) = plan.next_rows()

    assert (row.count, row.wants_logits, branch.generated) == (8, True, 3)
    assert row.task.chunk(8).tolist() == [0, 1, 2, 3, 4, 7, 7, 7]


def test_a_batch_without_cells_evicts_then_halves_until_something_fits() -> None:
    plan = scheduler()
    plan.submit(branch_job("idle", snapshot="idle", answer=1))
    plan.submit(branch_job("a", prompt=99))
    assert summary(step(plan)) == [("idle", 5, True), ("a", 59, False)]

    evicted = plan.shrink(plan.next_rows())
    assert evicted is not None
    assert evicted.snapshot == "idle"
    assert plan.shrink(plan.next_rows()) is None
    assert summary(plan.next_rows()) == [("a", 20, False)]
    assert plan.shrink(plan.next_rows()) is None
    assert summary(step(plan)) == [("a", 10, False)]
    assert summary(plan.next_rows()) == [("a", 30, True)]


def test_a_withdrawn_job_never_starts() -> None:
    plan = scheduler()
    plan.submit(branch_job("a"))
    plan.submit(branch_job("b"))

    assert plan.withdraw("a") is not None
    assert plan.withdraw("a") is None
    assert admit_all(plan) == ["b"]


@pytest.mark.parametrize("seed", range(20))
def test_every_job_of_a_random_load_ends_and_the_books_balance(seed: int) -> None:
    chance = random.Random(seed)
    plan = scheduler(n_ctx=700, n_positions=700)
    names = {f"job{number}" for number in range(60)}
    queue = [_random_job(chance, name) for name in sorted(names)]
    seen: set[str] = set()
    for _ in range(5000):
        if queue and chance.random() < 0.5:
            plan.submit(queue.pop())
        rows = step(plan)
        seen |= {row.task.job.id for row in rows}
        assert plan.free_cells >= 0
        assert sum(row.count for row in rows) <= plan.limits.n_batch
        sequences = [task.sequence for task in plan.tasks]
        sequences += [resident.sequence for resident in plan.residents.values()]
        assert len(set(sequences)) == len(sequences)
        if not queue and not plan.has_work:
            break

    assert seen == names
    assert not plan.has_work
    assert all(resident.forks == 0 for resident in plan.residents.values())


def _random_job(chance: random.Random, name: str) -> BranchJob | PrefillJob:
    if chance.random() < 0.2:
        return prefill_job(name, chance.randint(1, 600))
    return branch_job(
        name,
        snapshot=chance.choice("stuv"),
        prefix=chance.choice([50, 200]),
        prompt=chance.randint(1, 150),
        answer=chance.randint(1, 40),
        solo=chance.random() < 0.1,
    )
