"""When llama.cpp refuses something: the right jobs fail, the others and the next ones are answered rightly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from swarmkv.protocol.errors import DecodeFailed, EngineError, OutOfCells, SnapshotCorrupt, StoreFull
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import BranchEnded, EngineConfig, JobFailed, PrefillJob, Tokens
from swarmkv.workers.engine.model import Model
from tests.engine_driver import Driver, driven, random_tokens

PREFIX, PROMPT = random_tokens(300, seed=1), random_tokens(150, seed=2)
Fault = Callable[["FaultyContext", Batch], None]


class FaultyContext(Context):
    """A context that goes wrong when told to. `decode_fault` is called before each decode, and may raise."""

    decode_fault: Fault | None = None
    failing_restores: int = 0  # every so-many-th restore reads nothing

    def __init__(self, model: Model, config: EngineConfig) -> None:
        super().__init__(model, config)
        self.restores = 0

    def decode(self, batch: Batch) -> None:
        if self.decode_fault is not None:
            self.decode_fault(self, batch)
        super().decode(batch)

    def decode_really(self, batch: Batch) -> None:
        super().decode(batch)

    def restore(self, sequence: int, payload: memoryview, prefix_tokens: int) -> None:
        self.restores += 1
        if self.failing_restores and self.restores % self.failing_restores == 0:
            payload = memoryview(bytes(payload[:-8]))
        super().restore(sequence, payload, prefix_tokens)


def fault_of(driver: Driver) -> FaultyContext:
    context = driver.engine._context
    assert isinstance(context, FaultyContext)
    return context


def at_nth_decode(nth: int, fault: Fault, *, sharers: int = 1) -> Fault:
    """At the nth decode of those that hold rows of at least so many sequences."""
    count = 0

    def once(context: FaultyContext, batch: Batch) -> None:
        nonlocal count
        count += len(np.unique(batch._sequences[: batch.count])) >= sharers
        if count == nth:
            count += 1
            fault(context, batch)

    return once


def no_cells(_context: FaultyContext, _batch: Batch) -> None:
    raise OutOfCells("injected")


def failed_halfway(context: FaultyContext, batch: Batch) -> None:
    """As llama.cpp does: the part of the batch that was computed stays in the cells."""
    half = Batch(batch.capacity)
    count = max(1, batch.count // 2)
    for name in ("_tokens", "_positions", "_sequences"):
        getattr(half, name)[:count] = getattr(batch, name)[:count]
    half.count = half.raw.n_tokens = count
    context.decode_really(half)
    raise DecodeFailed("injected")


@pytest.fixture(scope="module")
def expected(tiny_llama_path: Path) -> dict[str, str]:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        return {f"b{number}": driver.answer(f"b{number}", payload, 300, prompt_of(number)) for number in range(4)}


def prompt_of(number: int) -> Tokens:
    return random_tokens(150 + number, seed=20 + number)


@pytest.mark.parametrize("fault", [no_cells, failed_halfway])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_decode_that_fails_once_costs_nobody_its_answer(
    tiny_llama_path: Path, expected: dict[str, str], fault: Fault, nth: int
) -> None:
    with driven(tiny_llama_path, FaultyContext) as driver:
        payload = driver.prefill(PREFIX)
        fault_of(driver).decode_fault = at_nth_decode(nth, fault, sharers=2)
        for name in expected:
            driver.start(name, payload, 300, prompt_of(int(name[1:])))
        assert {name: driver.text(name) for name in expected} == expected
        assert driver.answer("next", payload, 300, prompt_of(0)) == expected["b0"]


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_branch_whose_decode_fails_alone_fails_and_the_next_one_is_right(
    tiny_llama_path: Path, expected: dict[str, str], nth: int
) -> None:
    with driven(tiny_llama_path, FaultyContext) as driver:
        payload = driver.prefill(PREFIX)
        fault_of(driver).decode_fault = at_nth_decode(nth, failed_halfway)
        driver.start("unlucky", payload, 300, prompt_of(1))
        assert isinstance(driver.failure("unlucky"), DecodeFailed)
        assert driver.answer("next", payload, 300, prompt_of(0)) == expected["b0"]


def test_a_prefill_whose_decode_fails_is_reported_and_the_next_one_is_right(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    with driven(tiny_llama_path, FaultyContext) as driver:
        fault_of(driver).decode_fault = at_nth_decode(3, failed_halfway)
        driver.start_prefill(PREFIX, "unlucky", [])
        assert isinstance(driver.failure("unlucky"), DecodeFailed)
        payload = driver.prefill(PREFIX)
        assert driver.answer("next", payload, 300, prompt_of(0)) == expected["b0"]


def test_of_a_batch_with_one_bad_sequence_only_that_branch_fails(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    def shift_prompt_of_bad(_context: FaultyContext, batch: Batch) -> None:
        is_bad = batch._tokens[: batch.count] == BAD_TOKEN
        if is_bad.any():
            sequence = batch._sequences[: batch.count][is_bad][0]
            batch._positions[: batch.count][batch._sequences[: batch.count] == sequence] += 5

    with driven(tiny_llama_path, FaultyContext) as driver:
        payload = driver.prefill(PREFIX)
        fault_of(driver).decode_fault = shift_prompt_of_bad
        driver.start("bad", payload, 300, np.array([BAD_TOKEN] * 3, np.int32))
        for name in expected:
            driver.start(name, payload, 300, prompt_of(int(name[1:])))
        assert {name: driver.text(name) for name in expected} == expected
        assert isinstance(driver.failure("bad"), DecodeFailed)


BAD_TOKEN = 0  # random_tokens draws none


def test_a_branch_that_never_finds_cells_fails_and_frees_its_own(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    def starve_bad(_context: FaultyContext, batch: Batch) -> None:
        if (batch._tokens[: batch.count] == BAD_TOKEN).any():
            raise OutOfCells("injected")

    with driven(tiny_llama_path, FaultyContext) as driver:
        payload = driver.prefill(PREFIX)
        fault_of(driver).decode_fault = starve_bad
        driver.start("bad", payload, 300, np.array([BAD_TOKEN] * 3, np.int32))
        assert isinstance(driver.failure("bad"), OutOfCells)
        assert driver.answer("next", payload, 300, prompt_of(0)) == expected["b0"]


def test_restores_that_read_nothing_fail_their_branches_and_no_text_is_given(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    with driven(tiny_llama_path, FaultyContext, residents=1) as driver:
        payload = driver.prefill(PREFIX)
        fault_of(driver).failing_restores = 5
        failed = 0
        for number in range(30):
            name = f"job{number}"  # one resident only: every snapshot name is a restore
            driver.start(name, payload, 300, prompt_of(0), snapshot=name)
            outcome = driver.outcome(name)
            if isinstance(outcome, JobFailed):
                assert isinstance(outcome.error, SnapshotCorrupt)
                assert driver.events[name] == [outcome]
                failed += 1
            else:
                assert driver.text(name) == expected["b0"]
    assert failed == 6


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 0.99])
def test_a_cut_payload_is_refused_and_a_good_one_is_right_after_it(
    tiny_llama_path: Path, expected: dict[str, str], share: float
) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        cut = payload[: max(1, int(len(payload) * share))]
        driver.start("cut", cut, 300, PROMPT, snapshot="cut")
        assert isinstance(driver.failure("cut"), SnapshotCorrupt)
        assert driver.answer("good", payload, 300, prompt_of(0)) == expected["b0"]


def test_a_payload_of_fewer_tokens_than_announced_is_refused(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    with driven(tiny_llama_path) as driver:
        payload, short = driver.prefill(PREFIX, "p1"), driver.prefill(PREFIX[:299], "p2")
        driver.start("short", short, 300, PROMPT, snapshot="short")
        with pytest.raises(SnapshotCorrupt, match="299 of 300 tokens"):
            raise driver.failure("short")
        context = driver.engine._context
        with pytest.raises(SnapshotCorrupt):
            context.restore(2, memoryview(short), 300)
        assert context.position_after(2) == 0
        assert driver.answer("good", payload, 300, prompt_of(0)) == expected["b0"]


def test_a_payload_without_cells_to_take_it_is_told_apart_from_a_corrupt_one(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
    with driven(tiny_llama_path, n_ctx=512) as small:
        context = small.engine._context
        context.restore(0, memoryview(payload), 300)
        with pytest.raises(OutOfCells):
            context.restore(1, memoryview(payload), 300)
        assert context.position_after(1) == 0


def test_a_fork_that_did_not_happen_fails_the_branch(
    tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_memory_seq_cp", lambda *_: None)
            driver.start("unforked", payload, 300, PROMPT)
            assert isinstance(driver.failure("unforked"), EngineError)
        assert driver.answer("good", payload, 300, prompt_of(0)) == expected["b0"]


def test_missing_logits_are_an_error_and_not_a_crash(
    tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_get_logits", lambda *_: None)
            driver.start("blind", payload, 300, PROMPT)
            assert isinstance(driver.failure("blind"), DecodeFailed)
        assert driver.answer("good", payload, 300, prompt_of(0)) == expected["b0"]


def test_a_reserve_that_raises_fails_the_prefill_with_its_own_error(
    tiny_llama_path: Path, expected: dict[str, str]
) -> None:
    def store_full(_size_bytes: int) -> memoryview:
        raise StoreFull("No room.")

    def too_small(_size_bytes: int) -> memoryview:
        return memoryview(bytearray(10))

    def buggy(_size_bytes: int) -> memoryview:
        raise KeyError("oops")

    with driven(tiny_llama_path) as driver:
        for name, reserve in (("full", store_full), ("small", too_small), ("buggy", buggy)):
            driver.engine.prefill(PrefillJob(name, PREFIX, reserve))
        assert isinstance(driver.failure("full"), StoreFull)
        assert isinstance(driver.failure("small"), EngineError)
        assert "oops" in str(driver.failure("buggy"))
        payload = driver.prefill(PREFIX)
        assert driver.answer("good", payload, 300, prompt_of(0)) == expected["b0"]


def test_a_failed_job_keeps_no_hold_on_the_mapping_of_its_snapshot(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = bytearray(driver.prefill(PREFIX))
        driver.start("cut", payload[:-10], 300, PROMPT, snapshot="cut")
        driver.failure("cut")
        driver.answer("good", payload, 300, PROMPT)
        payload.append(0)  # BufferError while anyone still looks at it


def test_an_error_that_is_nobodys_job_ends_the_engine_and_says_so(
    tiny_llama_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_context: FaultyContext, _batch: Batch) -> None:
        raise ZeroDivisionError("bug")

    with driven(tiny_llama_path, FaultyContext) as driver, caplog.at_level(logging.ERROR):
        fault_of(driver).decode_fault = broken
        driver.start_prefill(PREFIX, "p", [])
        with pytest.raises(ZeroDivisionError):
            driver.outcome("p")
        assert [record.action for record in caplog.records] == ["engine_died"]  # type: ignore[attr-defined]
        driver.start_prefill(PREFIX, "later", [])
        assert driver.outcome("later").id == "later"


def test_steps_that_ask_for_no_logits_some_and_all_give_each_branch_its_own_row(tiny_llama_path: Path) -> None:
    prompts = {f"b{length}": random_tokens(length, seed=length) for length in (3, 90, 64, 200, 1)}
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        alone = {name: driver.answer(f"{name}-alone", payload, 300, prompt) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            driver.start(name, payload, 300, prompt)
        assert {name: driver.text(name) for name in prompts} == alone
        assert all(isinstance(driver.outcomes[name], BranchEnded) for name in prompts)
        assert len(set(alone.values())) > 1
