"""Whatever llama.cpp answers, at whichever call: the engine goes on, others are right, and so is the next job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swarmkv.protocol.errors import DecodeFailed, EngineError, OutOfCells
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import JobFailed, Tokens
from tests.engine_driver import Driver, driven, random_tokens

PREFIX = random_tokens(300, seed=1)
BAD_PROMPT = np.zeros(3, np.int32)  # random_tokens draws no token 0
BRANCHES = [f"b{number}" for number in range(4)]
NO_CELLS = 1
every_answer = pytest.mark.parametrize("code", [1, 2, -1, -2, -3])

really_decode: Callable[[int, Any], int] = llama.llama_decode


def prompt_of(name: str) -> Tokens:
    number = int(name[1:])
    return random_tokens(150 + number, seed=20 + number)


def start_all(driver: Driver, payload: bytes) -> None:
    for name in BRANCHES:
        driver.start(name, payload, len(PREFIX), prompt_of(name))


def decode_half(context: int, batch: Any) -> None:
    """What is computed of a batch before its failure stays in the cells."""
    rows = batch.n_tokens
    batch.n_tokens = rows // 2
    if batch.n_tokens:
        really_decode(context, batch)
    batch.n_tokens = rows


def answering(code: int, *, at: int) -> Callable[[int, Any], int]:
    """llama_decode that answers `code` at its so-many-th call. No cells: nothing was computed."""
    calls = 0

    def decode(context: int, batch: Any) -> int:
        nonlocal calls
        calls += 1
        if calls != at:
            return really_decode(context, batch)
        if code != NO_CELLS:
            decode_half(context, batch)
        return code

    return decode


def answering_to_bad(code: int) -> Callable[[int, Any], int]:
    """llama_decode that answers `code` to every batch that holds the bad prompt."""

    def decode(context: int, batch: Any) -> int:
        if any(batch.token[row] == 0 for row in range(batch.n_tokens)):
            if code != NO_CELLS:
                decode_half(context, batch)
            return code
        return really_decode(context, batch)

    return decode


@pytest.fixture(scope="module")
def expected(tiny_llama_path: Path) -> dict[str, str]:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        return {name: driver.answer(name, payload, len(PREFIX), prompt_of(name)) for name in BRANCHES}


@every_answer
@pytest.mark.parametrize("at", [1, 4, 7])
def test_one_bad_answer_costs_nobody_who_shares_the_batch_a_text(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str], code: int, at: int
) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_decode", answering(code, at=at))
            start_all(driver, payload)
            outcomes = [driver.outcome(name) for name in BRANCHES]
        failed = [outcome for outcome in outcomes if isinstance(outcome, JobFailed)]
        # The first to arrive may be alone in the batch: then the failure is its own.
        assert [type(outcome.error) for outcome in failed] in ([], [DecodeFailed])
        for name in expected.keys() - {outcome.id for outcome in failed}:
            assert driver.text(name) == expected[name]
        assert driver.answer("next", payload, len(PREFIX), prompt_of("b0")) == expected["b0"]


@every_answer
@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_answer_to_a_prefill_fails_it_or_is_overcome_and_the_next_one_is_right(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str], code: int, at: int
) -> None:
    with driven(tiny_llama_path) as driver:
        buffers: list[bytearray] = []
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_decode", answering(code, at=at))
            driver.start_prefill(PREFIX, "unlucky", buffers)
            driver.outcome("unlucky")
        if buffers:
            assert driver.answer("first", bytes(buffers[0]), len(PREFIX), prompt_of("b0")) == expected["b0"]
        else:
            assert isinstance(driver.failure("unlucky"), DecodeFailed)
        payload = driver.prefill(PREFIX, "next")
        assert driver.answer("second", payload, len(PREFIX), prompt_of("b1"), snapshot="other") == expected["b1"]


@every_answer
def test_of_a_batch_that_is_always_refused_for_one_branch_only_that_one_fails(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str], code: int
) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_decode", answering_to_bad(code))
            driver.start("bad", payload, len(PREFIX), BAD_PROMPT)
            start_all(driver, payload)
            assert {name: driver.text(name) for name in BRANCHES} == expected
            kind = OutOfCells if code == NO_CELLS else DecodeFailed
            assert type(driver.failure("bad")) is kind
        assert driver.answer("next", payload, len(PREFIX), prompt_of("b0")) == expected["b0"]


def test_a_sequence_that_cannot_be_removed_ends_the_engine_and_says_so(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its cells would be the next branch's: nothing that this context says could be trusted any more.
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        with monkeypatch.context() as patch:
            patch.setattr(llama, "llama_memory_seq_rm", lambda *_: False)
            driver.start("stuck", payload, len(PREFIX), prompt_of("b0"))
            with pytest.raises(EngineError, match="cannot remove sequence"):
                driver.outcome("stuck")


class WithoutNumbers(Context):
    """What the model says behind the bad prompt is NaN, as when a state of 16 bits overflows."""

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        logits = super().logits(batch)
        for index, row in enumerate(batch.logits_rows):
            if batch._tokens[row] == 0:
                logits[index] = np.nan
        return logits


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_branch_whose_logits_are_no_numbers_fails_alone_and_says_nothing(
    tiny_llama_path: Path, expected: dict[str, str], temperature: float
) -> None:
    with driven(tiny_llama_path, WithoutNumbers) as driver:
        payload = driver.prefill(PREFIX)
        driver.start("bad", payload, len(PREFIX), BAD_PROMPT, temperature=temperature, seed=1)
        start_all(driver, payload)
        assert {name: driver.text(name) for name in BRANCHES} == expected
        with pytest.raises(DecodeFailed, match="its logits are NaN"):
            raise driver.failure("bad")
        assert len(driver.events["bad"]) == 1
